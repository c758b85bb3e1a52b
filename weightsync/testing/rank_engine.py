"""An engine of several processes, each of which holds a part of every tensor: for tests of what a killed worker leaves.

engine = RankEngine(scene.replica.path, scene.ref(1), scene.layout)    # loads what the image holds
engine.die_at = (1, 2)                                             # rank 1 is killed before the third tensor of the next apply
engine.ask()                                                       # (version, what all ranks say); Unavailable when one is gone
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weightsync.clock import SYSTEM, Clock
from weightsync.engine.api import Applied, Change, Mode
from weightsync.engine.proof import check_sums
from weightsync.errors import Conflict, Corrupt, Dirty, Invalid, Unavailable, WeightsyncError
from weightsync.format.layout import Layout
from weightsync.format.refs import VersionRef

_KINDS: dict[str, type[WeightsyncError]] = {kind.kind: kind for kind in (Invalid, Conflict, Corrupt)}


class _Worker:
    def __init__(self, rank: int, ranks: int) -> None:
        command = [sys.executable, "-m", "weightsync.testing.rank_worker", str(rank), str(ranks)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def send(self, call: dict[str, Any]) -> None:
        if self.process.stdin is not None:
            try:
                self.process.stdin.write(json.dumps(call) + "\n")
                self.process.stdin.flush()
            except OSError:
                return  # it is dead, which `receive` says

    def receive(self) -> dict[str, Any]:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise Unavailable("a worker process is gone", remedy="start it again")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise _KINDS.get(answer["error"], Unavailable)(answer["message"])
        return answer

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        self.process.wait()


class RankEngine:
    """For one thread."""

    def __init__(self, image: Path, version: VersionRef, layout: Layout, *, ranks: int = 2, clock: Clock = SYSTEM) -> None:
        """The workers load what `image` holds, which is `version`."""
        self.layout, self.die_at = layout, (-1, -1)
        self._version: VersionRef | None = version
        self._reason, self._clock, self.ranks = "", clock, ranks
        self._workers = [_Worker(rank, ranks) for rank in range(ranks)]
        self.call(do="start", image=str(image))

    @property
    def version(self) -> VersionRef | None:
        """What it serves; None where a worker was lost."""
        return self._version

    def ask(self) -> tuple[int, tuple[int, ...]]:
        """The version's number, and what each rank says. Raises `Unavailable`."""
        if self._version is None or self._reason:
            raise Unavailable(f"withdrawn: {self._reason or 'the weights are in doubt'}", remedy="ask another replica")
        return self._version.version, tuple(answer["said"] for answer in self.call(do="ask"))

    def stage(self, change: Change) -> "RankStaged":
        """Every rank opens the change file, or none keeps it."""
        self.check_base(change)
        if change.layout.digest != self.layout.digest:
            raise Invalid(f"version {change.version.version} does not fit the engine", remedy="start the engine with that model")
        try:
            self.call(do="stage", file=str(change.file), digest=change.digest)
        except WeightsyncError:
            self.call(do="discard")
            raise
        return RankStaged(self, change)

    def reload(self, change: Change, *, limit_s: float = 30.0) -> Applied:
        """Starts every worker anew, which loads from the image."""
        del limit_s
        if change.base is not None:
            raise Invalid("only a whole change can be reloaded", remedy="make it without a base")
        started = self._clock.monotonic_s()
        self.close()
        self._workers = [_Worker(rank, self.ranks) for rank in range(self.ranks)]
        try:
            self.call(do="load", image=str(change.image), file=str(change.file), digest=change.digest)
            self.prove(change)
        except WeightsyncError as error:
            self.lost(error.message)
            raise Dirty(f"reloading failed: {error}", remedy="restart the engine") from error
        self._version = change.version
        return Applied(change.version, change.lanes, change.lanes, self._clock.monotonic_s() - started)

    def sums(self) -> dict[str, int]:
        """Added over the ranks."""
        parts = [answer["sums"] for answer in self.call(do="sums")]
        return {one.name: sum(part[number] for part in parts) % (1 << 64) for number, one in enumerate(self.layout.tensors)}

    def withdraw(self, reason: str) -> None:
        """Serves nothing."""
        self._reason = reason

    def admit(self) -> None:
        """Serves again. Raises `Dirty`."""
        if self._version is None:
            raise Dirty("the weights are in doubt", remedy="reload them")
        self._reason = ""

    def close(self) -> None:
        """Ends the workers."""
        for worker in self._workers:
            worker.close()

    def call(self, each: Sequence[dict[str, Any]] = (), **what: Any) -> list[dict[str, Any]]:
        """One call to all ranks at once (`each`: more for each of them); all answers are awaited. Raises the first error."""
        for number, worker in enumerate(self._workers):
            worker.send({**what, **(each[number] if each else {})})
        answers, errors = [], []
        for worker in self._workers:
            try:
                answers.append(worker.receive())
            except WeightsyncError as error:
                errors.append(error)
        if errors:
            raise next((error for error in errors if isinstance(error, Unavailable)), errors[0])
        return answers

    def check_base(self, change: Change) -> None:
        """Raises `Conflict` unless the change starts from what is served."""
        if change.base is not None and change.base != self._version:
            raise Conflict(f"the change starts from version {change.base.version}, which is not served", remedy="make it from what is")

    def prove(self, change: Change) -> None:
        """Raises `Corrupt` unless the live sums are those of the change."""
        check_sums(change.layout, change.sums, self.sums(), change.version)

    def serve(self, version: VersionRef) -> None:
        """After all ranks have it."""
        self._version = version

    def lost(self, why: str) -> None:
        """Serves nothing until it is reloaded."""
        self._version, self._reason = None, why

    def monotonic_s(self) -> float:
        """Its clock."""
        return self._clock.monotonic_s()


class RankStaged:
    """A change that every rank has open."""

    def __init__(self, engine: RankEngine, change: Change) -> None:
        self._engine, self._change, self._used = engine, change, False

    def apply(self, mode: Mode = Mode.KEEP, *, limit_s: float = 30.0, prove: bool = False) -> Applied:
        """All ranks write, then all keep it; or all go back. Raises `Dirty` where a worker died."""
        del mode, limit_s
        self._use()
        engine, started = self._engine, self._engine.monotonic_s()
        engine.check_base(self._change)
        victim, tensor = engine.die_at
        engine.die_at = (-1, -1)
        try:
            written = engine.call([{"die_at": tensor} if rank == victim else {} for rank in range(engine.ranks)], do="write")
            if prove:
                engine.prove(self._change)
            engine.call(do="commit")
        except WeightsyncError as error:
            self._go_back(error)
            raise
        engine.serve(self._change.version)
        lanes = sum(answer["written"] for answer in written)
        return Applied(self._change.version, lanes, lanes, engine.monotonic_s() - started)

    def discard(self) -> None:
        """Every rank closes it."""
        self._use()
        self._engine.call(do="discard")

    def _use(self) -> None:
        if self._used:
            raise Invalid("this change was applied or discarded already", remedy="stage it again")
        self._used = True

    def _go_back(self, error: WeightsyncError) -> None:
        try:
            self._engine.call(do="undo")
        except WeightsyncError as worse:
            self._engine.lost(error.message)
            raise Dirty(f"a rank is lost after: {error.message}", remedy="reload the engine") from worse
