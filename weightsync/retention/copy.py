"""A run, or one version with its chain, to another store: against disasters, and across an air gap.

Every object is checked before it is written; shards, leaves, layouts and files first, then records and the log, then what is not copied is
condemned over there, and the heads come last: a copy that was cut short is no run yet, or still the older one. Doing it again goes on where
it stopped, and later brings what is new. Records are copied byte for byte, so that signatures hold; the run keeps its name.

A copy of one version is the run as it was when that version was at the head of `latest`: the other versions are condemned there, the
payloads of its chain are held. Do not collect garbage in the target meanwhile.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from weightsync.catalog import Catalog, Head, VersionRecord
from weightsync.errors import AlreadyExists, Compacted, Conflict, Corrupt, NotFound, WeightsyncError
from weightsync.format.envelope import seal
from weightsync.format.files import FileTable
from weightsync.format.keys import LATEST, version_name, version_of_name
from weightsync.format.limits import MAX_RECORD_BYTES
from weightsync.format.moves import Move, MoveRef, split_head
from weightsync.format.operators import Boundary
from weightsync.format.refs import VersionRef
from weightsync.format.versions import Payload
from weightsync.retention import objects, plan
from weightsync.retention.chains import Edge, chains, cheapest_path
from weightsync.retention.survey import Survey, Surveyor
from weightsync.store.api import ObjectStore
from weightsync.store.settle import ensure

logger = logging.getLogger(__name__)

THREADS = 8
Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class Copied:
    """What a copy did. `damaged`: what the source could not give, by key or version, and why; the rest is copied all the same."""

    versions: tuple[int, ...]
    held: tuple[int, ...]
    objects: int
    nbytes: int
    present: int  # objects that stood there already
    sequence: int  # of `latest` in the target
    damaged: tuple[tuple[str, WeightsyncError], ...] = ()


@dataclass
class _Plan:
    """What goes over: `stand` versions in full, `edges` payloads, up to `head`."""

    head: Head
    refs: dict[int, VersionRef]
    stand: list[int]
    edges: list[Edge]
    boundary: Boundary
    etag: str | None
    damaged: list[tuple[str, WeightsyncError]] = field(default_factory=list)


class Copier:
    """From `source` to the same run in `target`'s store."""

    def __init__(self, source: Catalog, target: Catalog, *, threads: int = THREADS, progress: Progress | None = None) -> None:
        self._source, self._target, self._threads = source, target, threads
        self._progress = progress or (lambda _done, _total: None)
        self._lock = threading.Lock()
        self._objects = self._nbytes = self._present = self._done = self._total = 0

    def copy(self, version: int | None = None) -> Copied:
        """Copies the run, or `version` with its chain.

        Raises `Compacted` for a version that is collected here or over there, `Conflict` when the target has gone another way, `Corrupt`
        where the one version asked for cannot be given, `Unavailable`.
        """
        source = self._source
        boundary = source.boundary()[0] or Boundary(source.keys.run, source.new_id())
        survey = Surveyor(source, threads=self._threads).take(boundary)
        made = self._whole(survey, boundary) if version is None else self._single(survey, version)
        payloads = [payload for payload in (self._payload(survey, edge) for edge in made.edges) if payload is not None]
        records = [survey.records[n] for n in sorted({*made.stand, *(e.target for e in made.edges)}) if n in survey.records]
        self._send(made, [*self._blobs(made, records), *(item for p in payloads for item in objects.shard_items(source, p))])
        edges = [e for e in made.edges if e.target in survey.records]
        self._send(made, [objects.payload_item(source, survey.records[e.target], *_way(e)) for e in edges])
        self._send(made, [objects.manifest_item(source, record.ref) for record in records])
        self._send(made, [objects.run_item(source), *self._log(LATEST, made.head)])
        if version is not None and made.damaged:
            raise made.damaged[0][1]
        self._give_up(made)
        head = self._target.adopt_head(LATEST, self._head_bytes(LATEST, made.head))
        if version is None:
            self._others(survey, made)
        held = sorted({e.target for e in made.edges} - set(made.stand))
        damaged = tuple(made.damaged)
        return Copied(tuple(made.stand), tuple(held), self._objects, self._nbytes, self._present, head.move.sequence, damaged)

    # ------------------------------------------------------------------------------------------------------------- planning

    def _whole(self, survey: Survey, boundary: Boundary) -> _Plan:
        there, etag, _ = self._there()
        stand = [n for n in survey.committed if not boundary.condemned(n) and not there.condemned(n)]
        edges = [e for e in survey.edges if not there.gone(e.name)]
        found = chains(stand, edges)
        made = _Plan(survey.head, survey.committed, stand, [], there, etag)
        broken = {n: Corrupt(f"version {n} cannot be rebuilt from the source", remedy="`weightsync repair` it first") for n in found.broken}
        made.damaged += [(version_name(n), error) for n, error in broken.items()]
        made.edges = [e for e in edges if e.usable and (e.target in stand or e in found.bought)]
        return made

    def _single(self, survey: Survey, version: int) -> _Plan:
        there, etag, alive = self._there()
        ref = self._source.find(version)
        self._source.check_kept(version)
        if there.condemned(version):
            raise Compacted(f"version {version} was collected in {self._target.store.url}", remedy="copy it to an empty place")
        same = [n for n, digest in alive.items() if n in survey.committed and survey.committed[n].manifest == digest]
        edges = cheapest_path(version, [e for e in survey.edges if not there.gone(e.name)], same)
        if edges is None:
            raise Corrupt(f"no chain leads to version {version} in {self._source.store.url}", remedy="`weightsync repair` it first")
        head = self._as_of(survey.head, version)
        refs = {n: r for n, r in survey.committed.items() if n <= head.move.highest}
        return _Plan(head, {**refs, version: ref}, [version], list(edges), there, etag)

    def _there(self) -> tuple[Boundary, str | None, dict[int, str]]:
        """The target's boundary, its tag, and the versions that are whole there, with their manifests' digests."""
        target = self._target
        found, etag = target.boundary()
        boundary = found or Boundary(target.keys.run, target.new_id())
        try:
            survey = Surveyor(target, threads=self._threads).take(boundary)
        except NotFound:
            return boundary, etag, {}
        stand = [n for n in survey.committed if not boundary.condemned(n)]
        broken = set(chains(stand, survey.edges).broken)
        return boundary, etag, {n: survey.committed[n].manifest for n in stand if n not in broken}

    def _as_of(self, head: Head, version: int) -> Head:
        """The newest move of `latest` to `version`, as a head."""
        for move, digest in self._source.history(head):
            if move.version == version:
                if digest == head.digest:
                    return head
                key = self._source.keys.log(LATEST, move.sequence, move.write_id)
                data = self._source.store.get(key, max_bytes=MAX_RECORD_BYTES).data
                return Head(move, digest, len(data), "", move.expires_ms, data)
        raise NotFound(f"version {version} is not in the history of `latest`", remedy="`weightsync versions` lists what is")

    # -------------------------------------------------------------------------------------------------------------- sending

    def _payload(self, survey: Survey, edge: Edge) -> Payload | None:
        record = survey.records.get(edge.target)
        return None if record is None else self._source.payload(record, *_way(edge))

    def _blobs(self, made: _Plan, records: Sequence[VersionRecord]) -> Iterator[objects.Item]:
        seen: set[str] = set()
        for record in records:
            for item in objects.state_items(self._source, record):
                if item.key not in seen:
                    yield item
                seen.add(item.key)
            if record.ref.version in made.stand and record.manifest.files.digest not in seen:
                seen.add(record.manifest.files.digest)
                yield from self._files(made, record, seen)

    def _files(self, made: _Plan, record: VersionRecord, seen: set[str]) -> Iterator[objects.Item]:
        try:
            table: FileTable = self._source.file_table(record.manifest.files)
        except WeightsyncError as error:
            made.damaged.append((self._source.keys.file(record.manifest.files.digest), error))
            return
        for item in objects.file_items(self._source, table):
            if item.key not in seen:
                seen.add(item.key)
                yield item

    def _log(self, channel: str, head: Head) -> Iterator[objects.Item]:
        for move, digest in self._source.history(head):
            yield objects.move_item(self._source, channel, _ref_of(move, digest))

    def _send(self, made: _Plan, items: Iterable[objects.Item]) -> None:
        """Copies all of `items`; the next kind begins when these stand."""
        todo = list(items)
        self._total += sum(item.max_bytes for item in todo if item.ref)
        with ThreadPoolExecutor(self._threads, thread_name_prefix="copy") as pool:
            made.damaged += filter(None, pool.map(self._one, todo))

    def _one(self, item: objects.Item) -> tuple[str, WeightsyncError] | None:
        try:
            self._over(item)
        except (Corrupt, NotFound) as error:
            logger.warning("not copied: %s", error)
            return item.key, error
        finally:
            with self._lock:
                self._done += item.ref.nbytes if item.ref else 0
                self._progress(self._done, max(self._done, self._total))
        return None

    def _over(self, item: objects.Item) -> None:
        store = self._target.store
        data = None if item.ref is not None and _has(store, item.key, item.ref.nbytes) else self._read(item)
        if data is None or (item.ref is None and _holds(store, item.key, data)):
            with self._lock:
                self._present += 1
            return
        try:
            ensure(store, item.key, data, clock=self._target.clock)
        except AlreadyExists:
            if item.ref is None:
                raise Conflict(f"{item.key!r} in {store.url} holds another record", remedy="that is another run: copy elsewhere") from None
            store.put(item.key, data)  # what stands under the digest of other bytes was damaged
        with self._lock:
            self._objects, self._nbytes = self._objects + 1, self._nbytes + len(data)

    def _read(self, item: objects.Item) -> bytes:
        data = self._source.store.get(item.key, max_bytes=item.max_bytes).data
        item.check(data)
        return data

    # ------------------------------------------------------------------------------------------------------------ finishing

    def _give_up(self, made: _Plan) -> None:
        """Condemns in the target what was not copied, and holds what the chains need."""
        there, stand = made.boundary, set(made.stand)
        present = self._target.head()
        known = {ref.version for ref in self._target.committed(present)} if present else set()
        kept_there = {n for n in known if not there.condemned(n)}
        versions = plan.merged(there.versions, [n for n in made.refs if n not in stand and n not in kept_there])
        after = replace(there, versions=versions)
        held = {*there.held, *(e.name for e in made.edges)}
        after = replace(after, held=tuple(sorted(name for name in held if after.condemned(version_of_name(name)))))
        if after != there:
            self._target.swap_boundary(after, made.etag)

    def _head_bytes(self, channel: str, head: Head) -> bytes:
        """The head object, its renewal included where it still is the head."""
        data = self._source.store.get(self._source.keys.head(channel), max_bytes=2 * MAX_RECORD_BYTES + 1).data
        return data if split_head(data)[0] == head.data else head.data

    def _others(self, survey: Survey, made: _Plan) -> None:
        """Other channels, and pins. A channel that has moved beyond what was copied is left for the next time."""
        for channel in sorted(set(survey.wishes.channels) - {LATEST}):
            head = self._source.head(channel)
            if head is None or head.move.version not in (0, *made.stand):
                continue
            self._send(made, self._log(channel, head))
            self._target.adopt_head(channel, self._head_bytes(channel, head))
        for pin in survey.wishes.pins:
            if pin.version in made.stand:
                self._target.store.put(self._target.keys.pin(pin.version), seal(pin.to_body()).data)


def _ref_of(move: Move, digest: str) -> MoveRef:
    """What a later move names as its predecessor."""
    return MoveRef(move.sequence, move.write_id, digest)


def _way(edge: Edge) -> tuple[int, str]:
    return edge.base, edge.writer


def _has(store: ObjectStore, key: str, nbytes: int) -> bool:
    try:
        return store.stat(key).size_bytes == nbytes
    except NotFound:
        return False


def _holds(store: ObjectStore, key: str, data: bytes) -> bool:
    try:
        return store.get(key, max_bytes=MAX_RECORD_BYTES).data == data
    except (NotFound, Corrupt):
        return False
