"""One attempt to make a version: encode and upload everything under a number, then swap the head, then promote the base."""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from weightsync.catalog import Catalog, Claim, NewVersion, VersionRecord
from weightsync.clock import Clock
from weightsync.errors import WeightsyncError
from weightsync.failpoints import failpoint
from weightsync.format.digests import DigestTable
from weightsync.format.layout import describe_difference
from weightsync.format.packing import SHARD_BYTES, pack
from weightsync.format.refs import Ref
from weightsync.format.root import root_digest
from weightsync.format.versions import Form, Shard
from weightsync.publisher.additions import AdditionSettings
from weightsync.publisher.diff import Base, Differ
from weightsync.publisher.result import Published
from weightsync.publisher.source import Chunking, Source
from weightsync.publisher.upload import CONNECTIONS, WINDOW_BYTES, Uploader
from weightsync.replica.replica import Replica
from weightsync.store.retry import DEFAULT, RetryPolicy

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """`threads` that read and encode (None: one per processor). `expires_s`: how long a head is fresh (None: for ever).

    `patience`: how long the upload of one object is tried. `additions`: folds and snapshots made beside. `replace_model`: take weights that
    share no tensor name with the run's.
    """

    threads: int | None = None
    shard_bytes: int = SHARD_BYTES
    connections: int = CONNECTIONS
    window_bytes: int = WINDOW_BYTES
    chunking: Chunking = field(default_factory=Chunking)
    expires_s: float | None = None
    patience: RetryPolicy = DEFAULT
    additions: AdditionSettings = field(default_factory=AdditionSettings)
    replace_model: bool = False

    @property
    def workers(self) -> int:
        """Threads to use."""
        return self.threads or len(os.sched_getaffinity(0))


class Phases:
    """Seconds by phase."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Adds the time spent inside."""
        began = self._clock.monotonic_s()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._clock.monotonic_s() - began


@dataclass(frozen=True)
class Task:
    """What is to be published, on what. `parent` None: the first version. `known`: digests of files that are in the store already.

    `snapshot`: do not make a delta even where one is possible.
    """

    claim: Claim
    parent: VersionRecord | None
    source: Source
    step: int | None
    note: str
    known: frozenset[str]
    snapshot: bool = False


class Attempt:
    """Under one number. Call `stage`, `commit`, `promote` in this order; `abort` at any time before `promote` undoes what is local."""

    def __init__(self, catalog: Catalog, replica: Replica, task: Task, number: int, *, settings: Settings, phases: Phases) -> None:
        self._catalog, self._replica, self._task = catalog, replica, task
        self._number, self._settings, self._phases = number, settings, phases
        self._base = self._usable_base()
        self._shards: list[Shard] = []
        self._uploaded: dict[str, int] = {}
        self._transition = replica.begin(None, task.source.layout, None, fresh=self._base is None)

    @property
    def form(self) -> Form:
        """A delta where the base is the parent and has the same layout, else a snapshot."""
        return Form.SNAPSHOT if self._base is None else Form.DELTA

    def stage(self) -> None:
        """Uploads everything but the head. Raises `AlreadyExists` when the number is taken: try the next one."""
        settings = self._settings
        with Uploader(
            self._catalog.store,
            connections=settings.connections,
            window_bytes=settings.window_bytes,
            patience=settings.patience,
            clock=self._catalog.clock,
        ) as uploader:
            with self._phases.measure("encode"):
                self._table, changed_lanes = self._encode(uploader)
            self._task.source.check_unchanged()
            failpoint("publish.shards_done")
            with self._phases.measure("commit"):
                self._new = self._describe(uploader, changed_lanes)
                failpoint("publish.before_manifest")
                self._plan = self._catalog.plan_commit(self._task.claim, self._new)
                for key, data in self._plan.objects:
                    uploader.add("records", key, data)
                uploader.drain()
        self._uploaded = {**uploader.totals(), "head": len(self._plan.envelope.data)}

    def commit(self) -> Claim:
        """Swaps the head. Raises `Fenced`, `Conflict`, `Compacted`, `OutcomeUnknown`, `Unavailable`."""
        with self._phases.measure("commit"):
            failpoint("publish.before_head")
            claim = self._catalog.finish_commit(self._task.claim, self._plan)
            failpoint("publish.after_head")
        return claim

    def promote(self) -> VersionRecord:
        """Makes what was committed the new base. If that fails, the base stays what it was and is brought up from the store later."""
        with self._phases.measure("promote"):
            failpoint("publish.before_promote")
            try:
                self._transition.aim(self._plan.ref, self._table)
                self._transition.finish()
            except (WeightsyncError, OSError) as error:
                logger.warning("version %d is committed, but the local base stays behind: %s", self._number, error)
                self.abort()
        return self._plan.record

    def abort(self) -> None:
        """Takes the base back to what it was. If that fails, there is no base any more, and the next publish rebuilds it."""
        try:
            self._transition.abort()
        except (WeightsyncError, OSError) as error:
            logger.warning("the local base is lost: %s", error)

    def result(self, notes: Iterable[str]) -> Published:
        """What was published."""
        task, new = self._task, self._new
        return Published(
            ref=self._plan.ref,
            step=task.step,
            form=new.form,
            changed_lanes=new.changed_lanes,
            lanes=task.source.layout.lanes,
            checkpoint_bytes=new.checkpoint_bytes,
            payload_bytes=sum(shard.nbytes for shard in new.shards),
            shards=len(new.shards),
            uploaded=self._uploaded,
            seconds=self._phases.seconds,
            notes=(*task.source.notes, *notes, *self._why_snapshot()),
        )

    def _usable_base(self) -> tuple[Base, DigestTable] | None:
        replica, parent, layout = self._replica, self._task.parent, self._task.source.layout
        if self._task.snapshot or parent is None or replica.version != parent.ref or replica.table is None or replica.layout is None:
            return None
        return (replica.image, replica.table) if replica.layout.digest == layout.digest else None

    def _why_snapshot(self) -> list[str]:
        task = self._task
        if self._base is not None or task.parent is None or task.parent.manifest.layout.digest == task.source.layout.digest:
            return []
        before = self._catalog.layout(task.parent.manifest.layout)
        return [f"a new layout, sent as a snapshot: {describe_difference(before, task.source.layout)}"]

    def _encode(self, uploader: Uploader) -> tuple[DigestTable, int]:
        differ = Differ(self._task.source, self._base, self._transition.apply)
        writer, base = self._task.claim.writer, self._task.parent.ref.version if self._task.parent and self._base else 0
        # Closed before anybody may abort: a worker must not write to the base while it is taken back.
        with closing(differ.frames(threads=self._settings.workers)) as frames:
            for shard in pack(frames, shard_bytes=self._settings.shard_bytes):
                self._shards.append(shard.entry)
                uploader.add("shards", self._catalog.keys.shard(writer, self._number, base, shard.entry.digest), shard.data)
        return differ.tally.table(), differ.tally.changed_lanes

    def _describe(self, uploader: Uploader, changed_lanes: int) -> NewVersion:
        task, layout = self._task, self._task.source.layout
        parent = task.parent.ref if task.parent else None
        table = self._table.to_bytes(layout)
        digests = Ref.of(table)
        uploader.add("digests", self._catalog.keys.digests(task.claim.writer, self._number, digests.digest), table)
        expires_s = self._settings.expires_s
        return NewVersion(
            number=self._number,
            parent=parent,
            base=parent if self._base else None,
            form=self.form,
            step=task.step,
            layout=self._upload_layout(uploader),
            root=root_digest(layout, self._table.leaves),
            digests=digests,
            files=self._upload_files(uploader),
            shards=tuple(self._shards),
            checkpoint_bytes=layout.nbytes,
            changed_lanes=changed_lanes,
            note=task.note,
            expires_ms=None if expires_s is None else int((self._catalog.clock.now_s() + expires_s) * 1000),
        )

    def _upload_layout(self, uploader: Uploader) -> Ref:
        parent, layout = self._task.parent, self._task.source.layout
        if parent is not None and parent.manifest.layout.digest == layout.digest:
            return parent.manifest.layout
        data = layout.to_bytes()
        uploader.add("layout", self._catalog.keys.layout(layout.digest), data)
        return Ref(layout.digest, len(data))

    def _upload_files(self, uploader: Uploader) -> Ref:
        table = self._task.source.files.to_bytes()
        ref = Ref.of(table)
        for file, data in ((ref, table), *self._task.source.objects):
            if file.digest not in self._task.known:
                uploader.add("files", self._catalog.keys.file(file.digest), data)
        return ref
