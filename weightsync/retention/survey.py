"""What a run holds at one moment: its history, who wants what, and every object below versions, shards and digests.

The order matters. The head is read first, the objects are listed last: whoever was fenced by then can commit nothing that the list shows.
Where LIST misses something, more is kept; nothing is taken for unneeded because a list is incomplete, but that a channel, a pin or a lease
made within the last grace time must be visible in it (those seen by earlier runs are read by their keys).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from weightsync.catalog import Catalog, Head, VersionRecord
from weightsync.errors import Compacted, Corrupt, Invalid, NotFound, Unavailable, Unsupported
from weightsync.format.envelope import Envelope
from weightsync.format.keys import LATEST, RunKeys, digests_name, payload_name, version_name
from weightsync.format.limits import MAX_RECORD_BYTES
from weightsync.format.names import check_plain
from weightsync.format.operators import Boundary
from weightsync.format.refs import VersionRef
from weightsync.format.versions import Form, Manifest, Payload
from weightsync.retention.chains import Edge
from weightsync.retention.policy import Wishes
from weightsync.store.api import Stat

T = TypeVar("T")
R = TypeVar("R")

THREADS = 16
COLLECTOR = "g"  # first letter of the names under which collectors write payloads
_UNUSABLE = (Corrupt, Compacted, Unsupported)


@dataclass(frozen=True)
class Survey:
    """`since_ms`: when each committed version was committed; `leftovers`: names of objects that were never committed and never will be.

    `edges`: payloads of versions that are not condemned, and held ones. `objects`: all keys by the name that the boundary has for them.
    """

    head: Head
    committed: dict[int, VersionRef]
    since_ms: dict[int, int]
    wishes: Wishes
    records: dict[int, VersionRecord] = field(default_factory=dict)
    edges: tuple[Edge, ...] = ()
    leftovers: frozenset[str] = frozenset()
    objects: dict[str, list[Stat]] = field(default_factory=dict)
    snapshots: dict[str, int] = field(default_factory=dict)  # layout digest -> bytes of its newest snapshot


class Surveyor:
    """Looks at one run as often as needed; records, which never change, are read once. `threads` 1: everything in the caller's."""

    def __init__(self, catalog: Catalog, *, threads: int = THREADS) -> None:
        self._catalog, self._keys, self._threads = catalog, catalog.keys, threads
        self._records: dict[VersionRef, VersionRecord] = {}
        self._payloads: dict[str, Payload] = {}
        self._foreign: dict[str, bool] = {}
        self._void_epochs: dict[int, int] = {}

    def take(self, boundary: Boundary) -> Survey:
        """The run as it is now. Raises `NotFound` when it has no head, `Corrupt` where heads or history are damaged, `Unavailable`."""
        catalog = self._catalog
        catalog.run()
        head = catalog.head()
        if head is None:
            raise NotFound(f"nothing was published to run {self._keys.run!r} yet", remedy="there is nothing to collect")
        survey = Survey(head, *self._history(head), self._wishes(boundary, head))
        listed = _Listing(self._keys, [*catalog.store.list(self._keys.versions), *self._objects()])
        stands = [ref for version, ref in survey.committed.items() if not boundary.gone(version_name(version))]
        records = {r.ref.version: r for r in self._map(self._record, stands) if r is not None}
        edges = self._edges(boundary, records, stands, listed)
        survey.records.update(records)
        survey.snapshots.update(self._snapshot_sizes(records))
        leftovers = frozenset(self._leftovers(boundary, survey, listed))
        return Survey(head, survey.committed, survey.since_ms, survey.wishes, records, edges, leftovers, listed.objects, survey.snapshots)

    def _map(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if self._threads == 1 or len(items) < 2:
            return [work(item) for item in items]
        with ThreadPoolExecutor(min(self._threads, len(items)), thread_name_prefix="survey") as pool:
            return list(pool.map(work, items))

    def _history(self, head: Head) -> tuple[dict[int, VersionRef], dict[int, int]]:
        since_ms: dict[int, int] = {}
        for move, _ in self._catalog.history(head):
            if move.version:
                since_ms[move.version] = move.created_ms
        return {ref.version: ref for ref in self._catalog.committed(head)}, dict(sorted(since_ms.items()))

    def _wishes(self, boundary: Boundary, head: Head) -> Wishes:
        known = boundary.policy.get("channels", []), boundary.policy.get("pins", [])
        names = {LATEST, *self._catalog.channels(), *filter(_is_channel, known[0] if isinstance(known[0], list) else [])}
        channels = {LATEST: head.move.version}
        for name in sorted(names - {LATEST}):
            found = self._catalog.head(name)
            if found is not None:
                channels[name] = found.move.version
        pins = self._catalog.pins(tuple(v for v in known[1] if type(v) is int and v > 0) if isinstance(known[1], list) else ())
        return Wishes(channels, tuple(pins), tuple(self._catalog.leases()))

    def _objects(self) -> Iterable[Stat]:
        yield from self._catalog.store.list(self._keys.shards)
        yield from self._catalog.store.list(self._keys.leaves)

    def _record(self, ref: VersionRef) -> VersionRecord | None:
        if ref not in self._records:
            try:
                self._records[ref] = self._catalog.manifest_of(ref.version, ref.manifest)
            except _UNUSABLE:
                return None
            except Unavailable:
                self._demand_absence(self._keys.manifest(ref.version))
                return None
        return self._records[ref]

    def _edges(
        self, boundary: Boundary, records: dict[int, VersionRecord], stands: Sequence[VersionRef], listed: "_Listing"
    ) -> tuple[Edge, ...]:
        wanted: list[tuple[int, int, str]] = []
        for ref in stands:
            ways = set(listed.payloads[ref.version])
            if ref.version in records:
                ways.add((records[ref.version].manifest.base, records[ref.version].manifest.writer))
            wanted += [(ref.version, base, writer) for base, writer in sorted(ways)]
        wanted = [way for way in wanted if not boundary.gone(payload_name(*way))]
        return tuple(self._map(lambda way: self._edge(records.get(way[0]), *way, listed=listed), wanted))

    def _edge(self, record: VersionRecord | None, version: int, base: int, writer: str, *, listed: "_Listing") -> Edge:
        name = payload_name(version, base, writer)
        payload = self._payload(record, version, base, writer) if record is not None else None
        if record is None or payload is None:
            return Edge(name, base, version, listed.nbytes(name), writer, usable=False)
        manifest = record.manifest
        whole = listed.has(name, {shard.digest: shard.nbytes for shard in payload.shards}) and listed.has(
            digests_name(manifest.writer, version), {manifest.digests.digest: manifest.digests.nbytes}
        )
        return Edge(name, base, version, payload.nbytes + manifest.digests.nbytes + record.nbytes, writer, usable=whole)

    def _payload(self, record: VersionRecord | None, version: int, base: int, writer: str) -> Payload | None:
        name = payload_name(version, base, writer)
        if name not in self._payloads and record is not None:
            try:
                self._payloads[name] = self._catalog.payload(record, base, writer)
            except _UNUSABLE:
                return None
            except Unavailable:
                self._demand_absence(self._keys.payload(version, base, writer))
                return None
        return self._payloads.get(name)

    def _demand_absence(self, key: str) -> None:
        """An object that was said to be missing must really be: an outage is not damage."""
        try:
            self._catalog.store.stat(key)
        except NotFound:
            return
        raise Unavailable(f"object {key!r} in {self._catalog.store.url} cannot be read", remedy="retry when the store has caught up")

    def _snapshot_sizes(self, records: dict[int, VersionRecord]) -> dict[str, int]:
        found: dict[str, int] = {}
        for payload in sorted(self._payloads.values(), key=lambda payload: payload.target.version):
            record = records.get(payload.target.version)
            if payload.form is Form.SNAPSHOT and record is not None:
                found[record.manifest.layout.digest] = payload.nbytes
        return found

    def _leftovers(self, boundary: Boundary, survey: Survey, listed: "_Listing") -> Iterable[str]:
        """Names of what publishers (fenced since) and collectors wrote and never committed."""
        fenced = survey.head.move.epoch
        for name, (version, base, writer) in listed.groups.items():
            if boundary.gone(name) or not _is_past(writer, fenced):
                continue
            if self._is_left(survey, version, base, writer, has_record=(base, writer) in listed.payloads[version]):
                yield name
        for name, (version, writer) in listed.leaves.items():
            record = survey.records.get(version)
            ours = version in survey.committed and (record is None or record.manifest.writer == writer)
            if not ours and not boundary.gone(name) and _is_past(writer, fenced):
                yield name
        for version in listed.manifests:
            void = version not in survey.committed and version <= survey.head.move.highest
            if void and not boundary.gone(version_name(version)) and self._void_epoch(version) < fenced:
                yield version_name(version)

    def _is_left(self, survey: Survey, version: int, base: int, writer: str, *, has_record: bool) -> bool:
        if version not in survey.committed:
            return True
        record = survey.records.get(version)
        if record is None or (record.manifest.base, record.manifest.writer) == (base, writer):
            return False
        return not has_record or self._is_foreign(record, base, writer)

    def _is_foreign(self, record: VersionRecord, base: int, writer: str) -> bool:
        """Whether a payload was made for another manifest of that number. One that cannot be read may be repaired: it is not."""
        key = self._keys.payload(record.ref.version, base, writer)
        if key not in self._foreign:
            try:
                data = self._catalog.store.get(key, max_bytes=MAX_RECORD_BYTES).data
                payload = Payload.from_envelope(Envelope.parse(data, key), run=self._keys.run)
            except (NotFound, Corrupt, Unsupported):
                return False
            self._foreign[key] = payload.target != record.ref
        return self._foreign[key]

    def _void_epoch(self, version: int) -> int:
        if version not in self._void_epochs:
            key = self._keys.manifest(version)
            try:
                data = self._catalog.store.get(key, max_bytes=MAX_RECORD_BYTES).data
                manifest = Manifest.from_envelope(Envelope.parse(data, key), run=self._keys.run, version=version)
            except (NotFound, Corrupt, Unsupported):
                return 1 << 62
            self._void_epochs[version] = manifest.epoch
        return self._void_epochs[version]


class _Listing:
    """What LIST showed, by the names of the boundary."""

    def __init__(self, keys: RunKeys, stats: Iterable[Stat]) -> None:
        self.objects: dict[str, list[Stat]] = defaultdict(list)
        self.payloads: dict[int, set[tuple[int, str]]] = defaultdict(set)  # version -> (base, writer) of records
        self.groups: dict[str, tuple[int, int, str]] = {}  # payload name -> version, base, writer; by record or shard
        self.leaves: dict[str, tuple[int, str]] = {}
        self.manifests: list[int] = []
        self._sizes: dict[tuple[str, str], int] = {}
        for stat in stats:
            self._add(keys, stat)

    def _add(self, keys: RunKeys, stat: Stat) -> None:
        name = ""
        if (version := keys.parse_manifest(stat.key)) is not None:
            name = version_name(version)
            self.manifests.append(version)
        elif (found := keys.parse_payload(stat.key)) is not None:
            name = payload_name(*found)
            self.groups[name] = found
            self.payloads[found[0]].add(found[1:])
        elif (shard := keys.parse_shard(stat.key)) is not None:
            writer, version, base, digest = shard
            name = payload_name(version, base, writer)
            self.groups[name] = (version, base, writer)
            self._sizes[name, digest] = stat.size_bytes
        elif (leaves := keys.parse_digests(stat.key)) is not None:
            writer, version, digest = leaves
            name = digests_name(writer, version)
            self.leaves[name] = (version, writer)
            self._sizes[name, digest] = stat.size_bytes
        if name:
            self.objects[name].append(stat)

    def has(self, name: str, wanted: dict[str, int]) -> bool:
        return all(self._sizes.get((name, digest)) == nbytes for digest, nbytes in wanted.items())

    def nbytes(self, name: str) -> int:
        return sum(stat.size_bytes for stat in self.objects.get(name, ()))


def _is_past(writer: str, epoch: int) -> bool:
    """Whether nobody can commit under that name any more: an older epoch's publisher, or a collector (who looks again afterwards)."""
    return writer.startswith(COLLECTOR) or (writer.isdecimal() and int(writer) < epoch)


def _is_channel(name: object) -> bool:
    try:
        return isinstance(name, str) and bool(check_plain(name, "channel"))
    except Invalid:
        return False
