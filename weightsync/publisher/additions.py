"""Folds and snapshots, made in a thread beside the publisher. They are optional: whatever goes wrong here costs bytes, never a version.

additions.committed(record, form, nbytes, ancestors, writer)     after a commit: what is due is decided, and made when there is time
additions.settle()                                               waits until nothing is left to do
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from weightsync.catalog import Catalog, VersionRecord
from weightsync.clock import Clock
from weightsync.errors import NotFound, Unavailable, WeightsyncError
from weightsync.format.refs import VersionRef
from weightsync.format.versions import Form
from weightsync.publisher.extra import Extra, OutOfReach
from weightsync.publisher.gate import Gate
from weightsync.publisher.snapshots import Chain, SnapshotPolicy, due, fold_base
from weightsync.replica.path import find_path
from weightsync.replica.replica import Replica

logger = logging.getLogger(__name__)

ATTEMPTS = 3
EPOCHS = 3  # of publishers before this one, whose unfinished snapshot is looked for
WAIT_S = 5.0  # after a failure of the store


@dataclass(frozen=True)
class AdditionSettings:
    """`fold_spans`: versions that one fold covers, for each level; empty: none. `threads` work on one addition."""

    fold_spans: tuple[int, ...] = (8,)
    snapshots: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    threads: int = 1


@dataclass(frozen=True)
class Committed:
    """A version that the publisher has committed. `ancestors`: versions before it that can be recovered, newest first."""

    record: VersionRecord
    form: Form
    nbytes: int
    ancestors: tuple[VersionRef, ...]
    writer: str


class Additions:
    """Owns a thread. `on_added` is told of each payload that was added (for metrics and tests)."""

    def __init__(
        self,
        catalog: Catalog,
        replica: Replica,
        settings: AdditionSettings,
        *,
        shard_bytes: int,
        clock: Clock,
        on_added: Callable[[Extra], None] | None = None,
    ) -> None:
        self.gate = Gate()
        self._catalog, self._replica, self._settings = catalog, replica, settings
        self._shard_bytes, self._clock, self._on_added = shard_bytes, clock, on_added
        self._chain = Chain()
        self._known = False  # whether the chain is what stands in the store
        self._events: deque[Committed] = deque()
        self._jobs: deque[Extra] = deque()
        self._changed = threading.Condition()
        self._busy = self._closed = False
        self._thread: threading.Thread | None = None

    def committed(self, event: Committed) -> None:
        """Takes note; returns at once."""
        with self._changed:
            if self._closed:
                return
            self._events.append(event)
            self._busy = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="weightsync-additions", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self, timeout_s: float | None = None) -> bool:
        """Waits until nothing is left to do; False when it is still at work after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy or self._closed, timeout_s)

    def close(self) -> None:
        """Drops what is not done, at the next group of chunks."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.gate.close()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = bool(self._events or self._jobs)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._events or self._jobs or self._closed)
                if self._closed:
                    return
                events, self._events = list(self._events), deque()
            for event in events:
                self._guarded(str(event.record.ref.version), lambda event=event: self._decide(event))  # type: ignore[misc]
            if self._jobs:
                job = self._jobs.popleft()
                self._guarded(str(job), lambda job=job: self._make(job))  # type: ignore[misc]

    def _guarded(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except (WeightsyncError, OSError, OutOfReach) as error:
            logger.warning("%s: nothing is added: %s", what, error)

    def _decide(self, event: Committed) -> None:
        version = event.record.ref.version
        first = not self._known
        self._learn(event)
        numbers = [ref.version for ref in event.ancestors]
        for span in self._settings.fold_spans:
            base = fold_base(numbers, version, span)
            if base:
                self._add(event.record, event.ancestors[numbers.index(base)], event.writer)
        begun = self._begun(event) if first else None
        if begun is not None:
            logger.info("%s was begun before: it goes on", begun)
            self._jobs.append(begun)
            return
        reason = due(self._settings.snapshots, self._chain.facts(version))
        if reason and event.form is not Form.SNAPSHOT:
            logger.info("a snapshot of version %d is due: %s", version, reason)
            # One that was due before and is not made yet is not needed any more.
            self._jobs = deque(job for job in self._jobs if job.form is not Form.SNAPSHOT)
            self._add(event.record, None, event.writer)

    def _begun(self, event: Committed) -> Extra | None:
        """The snapshot that a publisher before this one did not finish: under its name, so that what the store has is not sent again.

        The collector may have marked what is there; the payload is then refused, and the next snapshot is made as if there were none.
        """
        if event.form is Form.SNAPSHOT or self._settings.snapshots.every == 0 or not event.writer.isdecimal():
            return None
        own = int(event.writer)
        for ref in event.ancestors:
            for epoch in range(own - 1, max(0, own - 1 - EPOCHS), -1):
                if ref.version > self._chain.newest_snapshot and self._has_shards(ref.version, str(epoch)):
                    return self._extra(self._catalog.manifest_of(ref.version, ref.manifest), None, str(epoch))
        return None

    def _has_shards(self, version: int, writer: str) -> bool:
        """Whether a snapshot's shards are there without its payload."""
        catalog = self._catalog
        if next(iter(catalog.store.list(catalog.keys.shard(writer, version, 0, ""))), None) is None:
            return False
        try:
            catalog.store.stat(catalog.keys.payload(version, 0, writer))
        except NotFound:
            return True
        return False

    def _extra(self, record: VersionRecord, base: VersionRef | None, writer: str) -> Extra:
        return Extra(record, base, writer, shard_bytes=self._shard_bytes, threads=self._settings.threads)

    def _add(self, record: VersionRecord, base: VersionRef | None, writer: str) -> None:
        self._jobs.append(self._extra(record, base, writer))

    def _learn(self, event: Committed) -> None:
        version, parent = event.record.ref.version, event.record.manifest.parent
        if event.form is Form.SNAPSHOT:
            self._chain, self._known = Chain(), True
            self._chain.start(version, event.nbytes)
            return
        if not self._known or parent is None or not self._chain.knows(parent.version):
            path = find_path(self._catalog, None, event.record)
            first, *rest = path.steps
            snapshot, since = first.target.version, sum(payload.nbytes for payload in rest)
            self._chain.resume(snapshot, first.nbytes, version, max(1, version - snapshot), since)
            self._known = True
            return
        self._chain.add(parent.version, version, event.nbytes)

    def _make(self, job: Extra) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                job.run(self._catalog, self._replica, self.gate)
                break
            except Unavailable as error:
                if attempt == ATTEMPTS:
                    raise
                logger.warning("%s: %s; it is tried again", job, error)
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, WAIT_S)
        version = job.record.ref.version
        if job.base is None:
            self._chain.start(version, job.nbytes)
        else:
            self._chain.add(job.base.version, version, job.nbytes)
        logger.info("added: %s, %d bytes", job, job.nbytes)
        if self._on_added is not None:
            self._on_added(job)
