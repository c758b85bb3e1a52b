"""One publishing process: claims the run, keeps a verified base, and commits one version after another.

    with Publisher(catalog, replica, shards, who="trainer-0") as publisher:
        publisher.publish_checkpoint(Path("step_100"), step=100)

The base is the committed version, proven by its leaves: from the local replica if it holds that version, else rebuilt from the store. The
frames that are uploaded are applied to it as they are made (so every chunk was rebuilt and compared before a reader sees it), under an
undo journal, and it counts as the new base only after the head has moved. Whatever fails before that changes nothing.

A trainer that goes back to an older step says from which version it goes on (`fork`): the next one is a delta on that. A checkpoint that
lies on this host and is that version saves the download (`adopt`). Folds and snapshots are made beside, see `additions`.
"""

import logging
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from weightsync.catalog import Catalog, Claim, VersionRecord
from weightsync.errors import AlreadyExists, Compacted, Corrupt, Fenced, Invalid, NotFound, Unavailable
from weightsync.failpoints import failpoint
from weightsync.format.keys import LATEST
from weightsync.format.layout import Layout
from weightsync.publisher.additions import Additions, Committed
from weightsync.publisher.checkpoint import open_checkpoint
from weightsync.publisher.commit import Attempt, Phases, Settings, Task
from weightsync.publisher.result import Published
from weightsync.publisher.source import Chunking, Source
from weightsync.replica.adopt import adopt
from weightsync.replica.fetch import MissingShard, ShardSource
from weightsync.replica.replica import Replica
from weightsync.replica.update import update
from weightsync.store.oserrors import named_errors

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 16  # numbers that others take before our eyes


class Publisher:
    """Not for several threads at once (see `LivePublisher`). Closing it releases the replica."""

    def __init__(
        self, catalog: Catalog, replica: Replica, shards: ShardSource, *, who: str, model: str = "", settings: Settings | None = None
    ) -> None:
        """`replica`: the base, ours alone. `shards`: where versions that it lacks come from. `who`: for people, in every record."""
        self._catalog, self._replica, self._shards = catalog, replica, shards
        self._who, self._model, self._settings = who, model, settings or Settings()
        self._chunking = Chunking.of(replica.layout) if replica.layout else self._settings.chunking
        self._claim: Claim | None = None
        self._parent: VersionRecord | None = None
        self._known: set[str] = set()  # digests of files that the store has
        self._fenced: Fenced | None = None
        self._base_lost = ""
        self._fork: VersionRecord | None = None  # what the next version grows from, where that is not the newest
        self.additions = Additions(catalog, replica, self._settings.additions, shard_bytes=self._settings.shard_bytes, clock=catalog.clock)

    @property
    def layout(self) -> Layout | None:
        """The tensors of the base; None before there is one."""
        return self._replica.layout

    @property
    def chunking(self) -> Chunking:
        """How sources should cut their tensors, so that a delta is possible."""
        return self._chunking

    @property
    def version(self) -> int:
        """The version that the next one grows from: the one committed last, as far as this publisher knows; 0 before the first."""
        return self._parent.ref.version if self._parent else 0

    @property
    def step(self) -> int | None:
        """The training step of that version."""
        return self._parent.manifest.step if self._parent else None

    def start(self) -> int:
        """Claims the run, which stops every older publisher, and brings the base to the committed version, whose number it returns.

        `publish` does this when it was not done. Raises what the catalog and the replica raise.
        """
        with self.additions.gate.publishing():
            self._ready()
        return self.version

    def fork(self, version: int) -> None:
        """The next version grows from the committed `version`, not from the newest. Raises `NotFound`, `Compacted`."""
        record = self._catalog.manifest_of(version)
        self._catalog.check_kept(version)
        self._fork = record

    def adopt(self, path: Path) -> int:
        """Takes a checkpoint on this host as the base if it is a committed version, from which the next one grows; its number, or 0.

        After `fork` it must be that version. Raises what `open_checkpoint` raises, `NoSpace`, `Unavailable`.
        """
        newest = self._newest()
        if newest is None:
            return 0
        wanted = self._fork or newest
        with (
            self.additions.gate.publishing(),
            closing(open_checkpoint(path, Chunking.of(self._catalog.layout(wanted.manifest.layout)))) as source,
        ):
            found = adopt(self._replica, self._catalog, source, wanted=wanted, only=self._fork is not None)
        if found is None:
            return 0
        self._fork = found if found.ref != newest.ref else None
        return found.ref.version

    def settle(self, timeout_s: float | None = None) -> bool:
        """Waits until the folds and snapshots that are due are made, or were given up; False when that takes longer than `timeout_s`."""
        return self.additions.settle(timeout_s)

    def publish_checkpoint(self, path: Path, *, step: int | None = None, note: str = "", snapshot: bool = False) -> Published:
        """Publishes a Hugging Face directory or a safetensors file. Errors: see `open_checkpoint` and `publish`."""
        with self.additions.gate.publishing():
            return self._publish_checkpoint(path, step, note, snapshot=snapshot)

    def _publish_checkpoint(self, path: Path, step: int | None, note: str, *, snapshot: bool) -> Published:
        phases = Phases(self._catalog.clock)
        source = open_checkpoint(path, self.chunking)  # before any claim: a bad input must not stop the publisher that is at work
        try:
            if self._claim is None:
                with phases.measure("base"):
                    self._check_model(source)
                    self._ready(rebuild=not snapshot)
                if Chunking.of(source.layout) != self.chunking:
                    source.close()
                    source = open_checkpoint(path, self.chunking)
            return self._guarded(source, step, note, snapshot=snapshot, phases=phases)
        finally:
            source.close()

    def publish(self, source: Source, *, step: int | None = None, note: str = "", snapshot: bool = False) -> Published:
        """Commits the weights of `source` as the next version; `snapshot` sends them whole, which needs no base.

        Raises `Fenced` when a newer publisher has taken over: then, and at every later call. `Conflict` when the run was moved meanwhile,
        `Unavailable` and its kin when store or disk fail, `Invalid` when the input changed while it was read, or is another model's (see
        `Settings.replace_model`). After any of them the base and the committed version are what they were, and publishing may be tried
        again; `OutcomeUnknown` leaves open which version it is.
        """
        with self.additions.gate.publishing():
            return self._guarded(source, step, note, snapshot=snapshot, phases=Phases(self._catalog.clock))

    def close(self) -> None:
        """Releases the replica. Folds and snapshots that are not made yet are dropped (see `settle`)."""
        self.additions.close()
        self._replica.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _guarded(self, source: Source, step: int | None, note: str, *, snapshot: bool, phases: Phases) -> Published:
        try:
            with named_errors("publishing"):
                with phases.measure("base"):
                    self._check_model(source)
                    claim = self._ready(rebuild=not snapshot)
                failpoint("publish.staged")
                task = Task(claim, self._parent, source, step, note, frozenset(self._known), snapshot)
                return self._publish(task, phases)
        except Fenced as error:
            self._fenced = error
            raise

    def _publish(self, task: Task, phases: Phases) -> Published:
        number = self._catalog.next_number(task.claim)
        for _ in range(MAX_ATTEMPTS):
            attempt = Attempt(self._catalog, self._replica, task, number, settings=self._settings, phases=phases)
            try:
                attempt.stage()
                self._claim = attempt.commit()
            except AlreadyExists:
                attempt.abort()
                number = max(self._catalog.next_number(task.claim), number + 1)
                continue
            except Compacted as error:  # the head was moved to a version just when that was given up: nobody may build on it
                attempt.abort()
                if task.snapshot:
                    raise
                self._base_lost = f"version {self.version} is collected, sent as a snapshot: {error.message}"
                task, number = replace(task, snapshot=True), number + 1
                continue
            except BaseException:
                attempt.abort()
                raise
            self._parent = attempt.promote()
            self._fork = None
            self._known.update((self._parent.manifest.files.digest, *(ref.digest for ref, _ in task.source.objects)))
            result = attempt.result([self._base_lost] if self._base_lost else [])
            self._committed(self._parent, result, task.claim.writer)
            return result
        raise Unavailable(f"{MAX_ATTEMPTS} version numbers in a row were taken by others", remedy="look for another publisher of this run")

    def _committed(self, record: VersionRecord, result: Published, writer: str) -> None:
        self._replica.remember()
        ancestors = self._replica.past.ancestors(record.ref)
        self.additions.committed(Committed(record, result.form, result.payload_bytes, ancestors, writer))

    def _check_model(self, source: Source) -> None:
        """Raises `Invalid` for weights that share no tensor name with the version that they would follow: most likely a mistyped run.

        It needs no claim: a bad input must not stop the publisher that is at work.
        """
        parent = self._fork or self._parent or self._newest()
        if self._settings.replace_model or parent is None or parent.manifest.layout.digest == source.layout.digest:
            return
        theirs, ours = self._catalog.layout(parent.manifest.layout).index.keys(), source.layout.index.keys()
        if theirs and ours and not theirs & ours:
            raise Invalid(
                f"these weights are another model's: none of their tensors ({len(ours)}, first {min(ours)!r}) is in version "
                f"{parent.ref.version} of run {self._catalog.keys.run!r} ({len(theirs)}, first {min(theirs)!r})",
                remedy="publish them under a --run of their own, or go on with them in this one with --replace-model",
            )

    def _newest(self) -> VersionRecord | None:
        head = self._catalog.head(LATEST)
        return None if head is None or head.version is None else self._catalog.manifest_of(head.version.version, head.version.manifest)

    def _ready(self, *, rebuild: bool = True) -> Claim:
        if self._fenced is not None:
            raise self._fenced
        if self._claim is None:
            failpoint("publish.start")
            self._catalog.open_run(self._model)
            self._claim = self._catalog.claim(self._who)
            failpoint("publish.claimed")
        else:
            self._claim = self._refreshed(self._claim)
        ref = self._claim.head.version
        if self._fork is not None:
            ref = self._fork.ref
        if ref is not None and (self._parent is None or self._parent.ref != ref):
            self._parent = self._fork or self._catalog.manifest_of(ref.version, ref.manifest)
            table = self._catalog.file_table(self._parent.manifest.files)
            self._known = {self._parent.manifest.files.digest, *(file.ref.digest for file in (*table.small, *table.tensors))}
        if self._parent is not None:
            if rebuild:
                self._rebuild_base(self._parent)
            self._chunking = Chunking.of(self._catalog.layout(self._parent.manifest.layout))
        return self._claim

    def _refreshed(self, claim: Claim) -> Claim:
        """The same claim at the head as it is now: a commit whose outcome was unknown is adopted if it is there.

        Looking first keeps a fenced publisher from uploading in vain. An older head than ours is an answer from the past; the swap decides.
        """
        head = self._catalog.head_if_changed(LATEST, claim.head.etag)
        if head is None or head.move.sequence < claim.head.move.sequence:
            return claim
        if head.move.epoch != claim.epoch:
            raise Fenced(
                f"run {self._catalog.keys.run!r} has a newer publisher: {head.move.who!r}, epoch {head.move.epoch} (ours: {claim.epoch})",
                remedy="stop this one; to take over again, start it anew",
            )
        return Claim(claim.epoch, head, claim.who)

    def _rebuild_base(self, parent: VersionRecord) -> None:
        """Makes the replica hold `parent`. Where the store cannot give it back, the next version goes out as a snapshot, and says so."""
        self._base_lost = ""
        if self._replica.version == parent.ref and self._replica.root == parent.manifest.root:
            return
        try:
            update(self._replica, self._catalog, parent, self._shards)
        except (NotFound, Corrupt, Compacted, MissingShard) as error:
            self._base_lost = f"version {parent.ref.version} could not be rebuilt, sent as a snapshot: {error}"
            logger.warning("%s", self._base_lost)
