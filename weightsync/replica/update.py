"""Makes a replica one version: path, download, decode, check, mark. Whatever fails, what was held before is held afterwards.

Downloading runs beside decoding, and beside the decoding of earlier steps; a path of several steps is one transition, marked once at its
end. Where older versions kept on this host are on the way (`past`), the first part of it is made from those, without the network. A payload
whose shards are missing or damaged, and older versions that are damaged, are given up for another path, if there is one.
"""

import logging
from collections.abc import Callable, Container, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from weightsync.catalog import Catalog, VersionRecord
from weightsync.clock import SYSTEM, Clock
from weightsync.errors import Compacted, Corrupt, WeightsyncError
from weightsync.failpoints import failpoint
from weightsync.format.digests import DigestTable
from weightsync.format.layout import Layout
from weightsync.format.refs import VersionRef
from weightsync.format.shard import parse_shard
from weightsync.format.versions import Form, Payload, Shard
from weightsync.replica.fetch import MissingShard, ShardSource
from weightsync.replica.parallel import BATCH_BYTES, BATCH_CHUNKS
from weightsync.replica.past import Pair
from weightsync.replica.path import Path, find_path
from weightsync.replica.remember import go_back
from weightsync.replica.replica import Replica
from weightsync.replica.transition import Transition
from weightsync.store.api import Buffer
from weightsync.store.oserrors import named_errors

_log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]  # bytes done, bytes in all
Frames = list[tuple[int, memoryview]]
_READERS = 8


@dataclass
class Timings:
    """Seconds by phase. `back_s`: on this host, from older versions. `fetch_s` is the waiting for bytes that decoding did not cover."""

    path_s: float = 0.0
    back_s: float = 0.0
    fetch_s: float = 0.0
    apply_s: float = 0.0
    mark_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.path_s + self.back_s + self.fetch_s + self.apply_s + self.mark_s


@dataclass(frozen=True)
class Update:
    """What an update did. `path.steps` is empty when the version was held already; `avoided` are payloads that proved unusable, and why."""

    version: VersionRef
    path: Path
    bytes_fetched: int
    bytes_cached: int
    seconds: Timings = field(default_factory=Timings)
    avoided: tuple[tuple[Payload, WeightsyncError], ...] = ()


class _Unusable(Exception):
    """A payload that did not lead where it should."""

    def __init__(self, payload: Payload, error: WeightsyncError) -> None:
        super().__init__(str(error))
        self.payload = payload
        self.error = error


def update(
    replica: Replica,
    catalog: Catalog,
    target: VersionRecord,
    source: ShardSource,
    *,
    clock: Clock = SYSTEM,
    progress: Progress | None = None,
) -> Update:
    """Brings `replica` to `target`. Raises `Corrupt`, `Compacted`, `Unavailable`, `NoSpace`, `Conflict`; the old version is kept then.

    Only where memory itself proves damaged, so that going back is impossible, the replica holds nothing; it is filled anew at once.
    """
    walk = _Walk(replica, catalog, source, clock, progress or _silent)
    avoid: dict[Payload, WeightsyncError] = {}
    while True:
        held = replica.version
        try:
            path = walk.find(target, avoid)
        except WeightsyncError as error:
            # What broke the best path says more than that no other is left.
            raise next(iter(avoid.values()), error) from None
        try:
            return replace(walk.go(path, target), avoided=tuple(avoid.items()))
        except _Forgotten as forgotten:
            _log.warning("an older version on this host is of no use: %s", forgotten)
            for pair in forgotten.pairs:
                replica.past.drop(pair)
        except _Unusable as unusable:
            # Where the base itself was lost on the way back, the payload is not to blame.
            if replica.version == held:
                avoid[unusable.payload] = unusable.error
            _log.warning("looking for another path: %s", unusable.error)


class _Forgotten(Exception):
    """Older versions kept on this host that did not lead where they should."""

    def __init__(self, pairs: list[Pair], error: WeightsyncError) -> None:
        super().__init__(str(error))
        self.pairs = pairs


@contextmanager
def _blamed(payload: Payload) -> Iterator[None]:
    try:
        yield
    except (Corrupt, Compacted, MissingShard) as error:
        raise _Unusable(payload, error) from error


class _Walk:
    def __init__(self, replica: Replica, catalog: Catalog, source: ShardSource, clock: Clock, progress: Progress) -> None:
        self._replica, self._catalog, self._source = replica, catalog, source
        self._clock, self._progress = clock, progress
        self._seconds = Timings()
        self._done = self._total = 0
        self._before = (source.bytes_fetched, source.bytes_cached)

    def find(self, target: VersionRecord, avoid: Container[Payload]) -> Path:
        started = self._clock.monotonic_s()
        self._replica.remember()
        have, past = self._replica.version, self._replica.past
        path = find_path(self._catalog, have, target, near=past.reach(have), avoid=avoid, bytes_of=self._source.bytes_of)
        self._seconds.path_s += self._clock.monotonic_s() - started
        return path

    def go(self, path: Path, target: VersionRecord) -> Update:
        if path.steps or path.goes_back:
            _log.info("version %d %s", target.ref.version, path.explain())
            self._done, self._total = 0, path.nbytes
            with named_errors(f"updating replica {str(self._replica.path)!r}"):
                self._travel(path)
        fetched, cached = self._source.bytes_fetched - self._before[0], self._source.bytes_cached - self._before[1]
        return Update(target.ref, path, fetched, cached, self._seconds)

    def _travel(self, path: Path) -> None:
        failpoint("subscribe.before_fetch")
        transition: Transition | None = None
        try:
            with closing(self._source.stream(path.steps)) as shards, self._tables(path) as tables:
                if path.goes_back and path.have is not None and path.start is not None:
                    transition = self._return(path.have, path.start)
                arriving = _Arriving(shards)
                for payload, record, waited in zip(path.steps, path.records, tables, strict=True):
                    with _blamed(payload):
                        layout, table = waited.result()
                        self._check_layout(payload, layout, transition)
                    if transition is None:
                        transition = self._replica.begin(record.ref, layout, table, fresh=payload.form is Form.SNAPSHOT)
                    else:
                        transition.advance(record.ref, table)
                    self._report(record.manifest.digests.nbytes)
                    with _blamed(payload):
                        self._step(transition, payload, arriving)
                if transition is not None:
                    failpoint("subscribe.applied")
                    started = self._clock.monotonic_s()
                    transition.finish(remember=bool(path.steps))
                    self._seconds.mark_s += self._clock.monotonic_s() - started
        finally:
            if transition is not None:
                self._go_back(transition)

    @contextmanager
    def _tables(self, path: Path) -> Iterator[list[Future[tuple[Layout, DigestTable]]]]:
        """Layout and leaves after each step, read ahead."""

        def read(record: VersionRecord) -> tuple[Layout, DigestTable]:
            layout = self._catalog.layout(record.manifest.layout)
            return layout, self._catalog.digests(record.manifest, layout)

        pool = ThreadPoolExecutor(max(1, min(_READERS, len(path.records))), thread_name_prefix="weightsync-tables")
        try:
            yield [pool.submit(read, record) for record in path.records]
        finally:
            pool.shutdown(cancel_futures=True)

    def _return(self, have: VersionRef, start: VersionRef) -> Transition:
        """A transition whose image is the older version `start`, made from what this host keeps."""
        replica, started = self._replica, self._clock.monotonic_s()
        layout, pairs = replica.image.layout, replica.past.way(have, start)
        try:
            table = replica.past.table(start, layout)
        except Corrupt as error:
            raise _Forgotten(pairs, error) from error
        transition = replica.begin(start, layout, table)
        try:
            go_back(transition, pairs, replica.workers)
            transition.check_complete()
        except Corrupt as error:
            self._go_back(transition)
            raise _Forgotten(pairs, error) from error
        except BaseException:
            self._go_back(transition)
            raise
        self._seconds.back_s += self._clock.monotonic_s() - started
        return transition

    def _go_back(self, transition: Transition) -> None:
        try:
            transition.abort()
        except Corrupt as error:
            _log.warning("replica %s lost its version: %s", self._replica.path, error)
            self._replica.forget(str(error))

    def _check_layout(self, payload: Payload, layout: Layout, transition: Transition | None) -> None:
        base = transition.layout if transition else self._replica.layout
        if payload.form is not Form.SNAPSHOT and (base is None or base.digest != layout.digest):
            raise Corrupt(f"version {payload.target.version} is a {payload.form.value} on another layout than its own")

    def _step(self, transition: Transition, payload: Payload, arriving: "_Arriving") -> None:
        asked = self._clock.monotonic_s()
        for _ in payload.shards:
            shard, data = arriving.next(payload)
            failpoint("subscribe.fetched")
            got = self._clock.monotonic_s()
            self._seconds.fetch_s += got - asked
            self._apply(transition, payload, shard, data)
            self._report(shard.nbytes)
            asked = self._clock.monotonic_s()
            self._seconds.apply_s += asked - got
        transition.check_complete()

    def _apply(self, transition: Transition, payload: Payload, shard: Shard, data: Buffer) -> None:
        chunks = transition.layout.first_chunks[-1]
        try:
            frames = parse_shard(memoryview(data), chunks)
        except Corrupt as error:
            raise Corrupt(f"shard {shard.digest[:12]} of version {payload.target.version}: {error.message}") from error
        if frames and not shard.first <= frames[0][0] <= frames[-1][0] <= shard.last:
            raise Corrupt(f"shard {shard.digest[:12]} of version {payload.target.version} holds other chunks than its payload says")

        def work(batch: Frames) -> None:
            for number, frame in batch:
                transition.apply(number, frame)

        for _ in self._replica.workers.map(work, _batched(frames, transition.layout, self._replica.workers.threads)):
            pass

    def _report(self, nbytes: int) -> None:
        self._done += nbytes
        self._progress(self._done, self._total)


class _Arriving:
    """The shards of a path in the order of its steps."""

    def __init__(self, shards: Generator[tuple[Payload, Shard, Buffer], None, None]) -> None:
        self._shards = shards

    def next(self, payload: Payload) -> tuple[Shard, Buffer]:
        """The next one, which is of `payload`."""
        of, shard, data = next(self._shards)
        if of is not payload:
            raise Corrupt(f"shards of version {of.target.version} came where those of {payload.target.version} were due")
        return shard, data


def _batched(frames: Frames, layout: Layout, threads: int) -> Iterator[Frames]:
    """Runs of frames of one shard, small enough for every thread to get some."""
    most = min(BATCH_BYTES, sum(layout.chunks[number].nbytes for number, _ in frames) // (2 * threads) + 1)
    batch: Frames = []
    nbytes = 0
    for number, frame in frames:
        batch.append((number, frame))
        nbytes += layout.chunks[number].nbytes
        if nbytes >= most or len(batch) >= BATCH_CHUNKS:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch


def _silent(done: int, total: int) -> None:
    """Nobody watches."""
    del done, total
