"""A small engine that is real: arrays in memory, requests from many threads, pauses, a prefix cache, and faults on demand.

    engine = MemoryEngine(scene.layout, scene.weights[0], scene.ref(1))
    engine.ask("prompt", tokens=4)               # Reply: what the live weights say, and which version said it
    engine.faults.arm("write", at=3)             # the next apply raises before its fourth tensor
    open_engine("memory://name")                 # after `share(name, engine)`

A token is the fingerprint of all live bits at the moment it is made, so a mix of two versions, or a wrong label, shows in what it says.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from weightsync.clock import SYSTEM, Clock
from weightsync.codec import chunk_sum
from weightsync.engine.api import Applied, Change, Mode, TensorChange
from weightsync.engine.gate import Entry, Gate, Pause
from weightsync.errors import Conflict, Corrupt, Dirty, Invalid, Unavailable, WeightsyncError
from weightsync.format.layout import Layout, describe_difference
from weightsync.format.refs import VersionRef

Weights = dict[str, NDArray[Any]]
NAMES = frozenset({"stage", "write", "nothing", "drift", "undo", "hang", "prove", "reload"})


class Reply(NamedTuple):
    """What a request got, one entry per token: `fingerprint_of` the weights that made it, and the version it is labelled with."""

    tokens: tuple[int, ...]
    versions: tuple[int, ...]


@dataclass
class Faults:
    """What is to go wrong.

    `write`: an exception before the tensor `at`; `nothing`: success is claimed and nothing written; `drift`: a bit changes that no change
    names; `undo`, `prove`, `reload`, `stage`: that step fails; `hang`: the pause's limit is used up.
    """

    armed: dict[str, list[int]] = field(default_factory=dict)  # name: [at, times left]
    hit: list[str] = field(default_factory=list)

    def arm(self, name: str, *, at: int = 0, times: int = 1) -> None:
        """The next `times` passes at `at` fail."""
        if name not in NAMES:
            raise Invalid(f"fault {name!r} does not exist", remedy=f"known: {', '.join(sorted(NAMES))}")
        self.armed[name] = [at, times]

    def due(self, name: str, at: int = 0) -> bool:
        """Whether it is time."""
        found = self.armed.get(name)
        if found is None or found[0] != at or found[1] <= 0:
            return False
        found[1] -= 1
        self.hit.append(name)
        return True


def fingerprint_of(layout: Layout, weights: Mapping[str, NDArray[Any]]) -> int:
    """63 bits of all bits, in the order of the layout."""
    hasher = xxhash.xxh3_64()
    for tensor in layout.tensors:
        hasher.update(np.ascontiguousarray(weights[tensor.name]).view(np.uint8).data if tensor.nbytes else b"")
    return hasher.intdigest() >> 1


class MemoryEngine:
    """Serves `weights` (lanes by name, copied) of `layout` as `version`. Requests come from any thread, the rest from one."""

    def __init__(
        self, layout: Layout, weights: Mapping[str, NDArray[Any]] | None = None, version: VersionRef | None = None, *, clock: Clock = SYSTEM
    ) -> None:
        """`weights` None: zeros, and it serves nothing until something is applied."""
        self.layout, self.faults = layout, Faults()
        self.live: Weights = {
            tensor.name: np.array(weights[tensor.name]) if weights else np.zeros(tensor.lanes, f"<u{tensor.dtype.lane_bytes}")
            for tensor in layout.tensors
        }
        self.dirty = False
        self._version = version
        self._cache: dict[tuple[str, str], int] = {}
        self._clock = clock
        self._gate = Gate(version.version if version else None, clock=clock)

    @property
    def version(self) -> VersionRef | None:
        """What it serves; None where that is in doubt."""
        return None if self.dirty else self._version

    def ask(self, prompt: str = "", *, tokens: int = 1, min_version: int = 0, between: Callable[[int], None] = lambda _: None) -> Reply:
        """Makes so many tokens; `between` is called before each, outside of any step. Raises `Unavailable` (ask again)."""
        found: list[int] = []
        versions: list[int] = []
        with self._gate.request(minimum=min_version) as request:
            for number in range(tokens):
                between(number)
                with self._gate.step() as version:
                    request.check()
                    found.append(self._token(prompt))
                    versions.append(version)
        return Reply(tuple(found), tuple(versions))

    def stage(self, change: Change) -> "MemoryStaged":
        """Checks that the change fits. Raises `Invalid`, `Conflict` (another base)."""
        if self.faults.due("stage"):
            raise Unavailable("fault: staging failed")
        why = describe_difference(self.layout, change.layout)
        if why:
            raise Invalid(f"version {change.version.version} does not fit the engine: {why}", remedy="start the engine with that model")
        if change.base is None and len(change.tensors) != len(self.layout.tensors):
            raise Invalid("a change without a base is not whole")
        self.check_base(change)
        return MemoryStaged(self, change)

    def reload(self, change: Change, *, limit_s: float = 30.0) -> Applied:
        """Writes everything anew. Raises `Dirty` where that fails too."""
        started = self._clock.monotonic_s()
        try:
            if change.base is not None:
                raise Invalid("only a whole change can be reloaded", remedy="make it without a base")
            with self._gate.pause(Mode.ABORT, limit_s):
                if self.faults.due("reload"):
                    raise Unavailable("fault: reloading failed")
                for one in change.tensors:
                    self.live[self.layout.tensors[one.tensor].name][:] = one.values
                self.prove(change)
        except WeightsyncError as error:
            self.be_dirty(error)
            raise Dirty(f"reloading failed: {error}", remedy="restart the engine") from error
        self.dirty = False
        self.now_serves(change.version)
        return Applied(change.version, change.lanes, change.lanes, self._clock.monotonic_s() - started)

    def sums(self) -> dict[str, int]:
        """Of what is live, by tensor name."""
        return {tensor.name: chunk_sum(tensor.dtype, self.live[tensor.name].data) for tensor in self.layout.tensors}

    def withdraw(self, reason: str) -> None:
        """Serves nothing."""
        self._gate.withdraw(reason)

    def admit(self) -> None:
        """Serves again. Raises `Dirty` where it must not."""
        if self.dirty or self._version is None:
            raise Dirty("the weights are in doubt", remedy="reload them")
        self._gate.admit()

    def close(self) -> None:
        """Nothing to let go of."""

    def check_base(self, change: Change) -> None:
        """Raises `Conflict` unless the change starts from what is served."""
        if change.base is not None and change.base != self.version:
            raise Conflict(f"the change starts from version {change.base.version}, which is not served", remedy="make it from what is")

    def pause(self, mode: Mode, limit_s: float) -> Entry[Pause]:
        """No token is made while the context lasts."""
        return self._gate.pause(mode, limit_s)

    def lanes(self, one: TensorChange) -> NDArray[Any]:
        """The live lanes of a tensor."""
        return self.live[self.layout.tensors[one.tensor].name]

    def prove(self, change: Change) -> None:
        """Raises `Corrupt` unless the sums of all live weights are those of the change."""
        live = self.sums()
        wrong = [tensor.name for number, tensor in enumerate(self.layout.tensors) if live[tensor.name] != int(change.sums[number])]
        if wrong or self.faults.due("prove"):
            raise Corrupt(f"{len(wrong)} tensors are not those of version {change.version.version} (first {wrong[:1]})")

    def now_serves(self, version: VersionRef) -> None:
        """After a write that was read back."""
        self._version = version
        self._gate.serve(version.version)

    def be_dirty(self, why: WeightsyncError) -> None:
        """Serves nothing until it is reloaded."""
        self.dirty = True
        self._gate.serve(None, f"the weights are in doubt: {why.message}")

    def monotonic_s(self) -> float:
        """Its clock."""
        return self._clock.monotonic_s()

    def _token(self, prompt: str) -> int:
        # The cache is kept by version: entries of another one are never looked at.
        key = (self._version.manifest if self._version else "", prompt)
        if prompt and key in self._cache:
            return self._cache[key]
        token = fingerprint_of(self.layout, self.live)
        if prompt:
            self._cache[key] = token
        return token


class MemoryStaged:
    """A change that fits."""

    def __init__(self, engine: MemoryEngine, change: Change) -> None:
        self._engine, self._change, self._used = engine, change, False

    def apply(self, mode: Mode = Mode.KEEP, *, limit_s: float = 30.0, prove: bool = False) -> Applied:
        """Writes it, or nothing of it."""
        self._use()
        engine, change = self._engine, self._change
        engine.check_base(change)
        with engine.pause(mode, limit_s):
            started = engine.monotonic_s()
            if engine.faults.due("hang"):
                threading.Event().wait(limit_s)
                raise Unavailable("the pause's limit is over", remedy="try again")
            written = 0 if engine.faults.due("nothing") else self._write(prove=prove)
            engine.now_serves(change.version)
            return Applied(change.version, written or change.lanes, written or change.lanes, engine.monotonic_s() - started)

    def discard(self) -> None:
        """Gives it up."""
        self._use()

    def _use(self) -> None:
        if self._used:
            raise Invalid("this change was applied or discarded already", remedy="stage it again")
        self._used = True

    def _write(self, *, prove: bool) -> int:
        undo: list[tuple[TensorChange, NDArray[Any]]] = []
        engine = self._engine
        try:
            for number, one in enumerate(self._change.tensors):
                if engine.faults.due("write", number):
                    raise Unavailable(f"fault: writing tensor {number} failed")
                lanes, place = engine.lanes(one), slice(None) if one.positions is None else one.positions
                undo.append((one, lanes[place].copy()))
                lanes[place] = one.values
            self._read_back()
            if engine.faults.due("drift"):
                next(lanes for lanes in engine.live.values() if len(lanes))[0] ^= 1
            if prove:
                engine.prove(self._change)
        except WeightsyncError as error:
            self._go_back(undo, error)
            raise
        return self._change.lanes

    def _read_back(self) -> None:
        for one in self._change.tensors:
            place = slice(None) if one.positions is None else one.positions
            if not np.array_equal(self._engine.lanes(one)[place], one.values):
                raise Corrupt(f"tensor {one.tensor} did not keep what was written")

    def _go_back(self, undo: list[tuple[TensorChange, NDArray[Any]]], error: WeightsyncError) -> None:
        engine = self._engine
        if engine.faults.due("undo") or engine.version is None:
            engine.be_dirty(error)
            raise Dirty(f"going back failed after: {error}", remedy="reload the engine") from error
        for one, before in reversed(undo):
            engine.lanes(one)[slice(None) if one.positions is None else one.positions] = before
