"""Brings back what a store has lost or what rotted in it, from whoever still has it.

Looked at is everything that must stand: the run's record, every channel's head and log, and all objects of versions that are not condemned
or that are held. Each object is read and checked; what is missing or wrong is asked for at the holders in turn, checked, and written. Where
a version cannot be rebuilt after that and a replica holds it, a snapshot is made from the replica.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from weightsync.catalog import Catalog, Head, VersionRecord
from weightsync.errors import Conflict, Corrupt, Denied, NotFound, WeightsyncError
from weightsync.format.envelope import Envelope
from weightsync.format.keys import LATEST, payload_name, version_name
from weightsync.format.limits import MAX_RECORD_BYTES
from weightsync.format.moves import Move, MoveRef
from weightsync.format.operators import Boundary
from weightsync.format.refs import VersionRef
from weightsync.format.versions import Payload
from weightsync.retention import objects
from weightsync.retention.chains import chains
from weightsync.retention.holders import Holder, ReplicaHolder, StoreHolder, first
from weightsync.retention.snapshot import write_snapshot
from weightsync.retention.survey import Surveyor
from weightsync.store.settle import ensure

logger = logging.getLogger(__name__)

THREADS = 8
Progress = Callable[[int, int], None]  # objects looked at, objects in all
MAX_HEAD_BYTES = 2 * MAX_RECORD_BYTES + 1


@dataclass(frozen=True)
class Repaired:
    """What was found. `brought`: (key, from whom) of what stands again; `lost`: (key or version, why) of what nobody has.

    `snapshots`: versions that were made reachable again from a replica.
    """

    looked_at: int
    brought: tuple[tuple[str, str], ...]
    lost: tuple[tuple[str, str], ...]
    snapshots: tuple[int, ...] = ()


@dataclass
class _Findings:
    looked_at: int = 0
    brought: list[tuple[str, str]] = field(default_factory=list)
    lost: list[tuple[str, str]] = field(default_factory=list)


class Repairer:
    """Repairs one run from `holders`, which are asked in that order."""

    def __init__(self, catalog: Catalog, holders: Sequence[Holder], *, threads: int = THREADS, progress: Progress | None = None) -> None:
        self._catalog, self._holders, self._threads = catalog, list(holders), threads
        self._progress = progress or (lambda _done, _total: None)
        self._found = _Findings()

    def repair(self, version: int | None = None) -> Repaired:
        """Looks at everything, or at `version` with its chain alone, and repairs what can be.

        Raises `Unavailable` when the store does not answer, `NotFound` when neither it nor a holder knows the run.
        """
        self._see([objects.run_item(self._catalog)])
        self._channels()
        catalog = self._catalog
        boundary = catalog.boundary()[0] or Boundary(catalog.keys.run, catalog.new_id())
        refs = [ref for ref in catalog.committed() if not boundary.gone(version_name(ref.version))]
        self._see([objects.manifest_item(catalog, ref) for ref in refs if version is None or ref.version <= version])
        records = self._records(refs if version is None else self._chain_of(version, refs))
        payloads = self._payloads(boundary, records)
        self._see([item for record in records for item in objects.state_items(catalog, record)])
        self._see([item for record in records for item in self._files(record)])
        self._see([item for payload in payloads for item in objects.shard_items(catalog, payload)])
        snapshots = self._from_replicas(boundary, {record.ref.version for record in records})
        found = self._found
        return Repaired(found.looked_at, tuple(found.brought), tuple(found.lost), snapshots)

    # ------------------------------------------------------------------------------------------------------------- objects

    def _see(self, items: Iterable[objects.Item]) -> None:
        """Reads and checks `items`, and brings back those that are missing or wrong."""
        todo = list({item.key: item for item in items}.values())
        with ThreadPoolExecutor(self._threads, thread_name_prefix="repair") as pool:
            for done, (item, wrong) in enumerate(zip(todo, pool.map(self._wrong, todo), strict=True), 1):
                self._found.looked_at += 1
                self._progress(done, len(todo))
                if wrong is not None:
                    self._bring(item, wrong)

    def _wrong(self, item: objects.Item) -> WeightsyncError | None:
        try:
            item.check(self._catalog.store.get(item.key, max_bytes=item.max_bytes).data)
        except (NotFound, Corrupt) as error:
            return error
        return None

    def _bring(self, item: objects.Item, wrong: WeightsyncError) -> bool:
        got = first(self._holders, item)
        if got is None:
            self._found.lost.append((item.key, wrong.message))
            return False
        self._write(item, wrong, *got)
        return True

    def _write(self, item: objects.Item, wrong: WeightsyncError, data: bytes, whose: str) -> None:
        if isinstance(wrong, NotFound):
            ensure(self._catalog.store, item.key, data, clock=self._catalog.clock)
        else:
            self._catalog.store.put(item.key, data)
        self._found.brought.append((item.key, whose))
        logger.info("%s is back, from %s", item.key, whose)

    # ------------------------------------------------------------------------------------------------------ heads and log

    def _channels(self) -> None:
        prefix = self._catalog.keys.channels
        keys = [stat.key for stat in self._catalog.store.list(prefix)]
        keys += [key for holder in self._holders for key in holder.keys(prefix)]
        names = {key.removeprefix(prefix).partition("/")[0] for key in keys}
        for name in sorted(names | {LATEST}, key=lambda name: (name != LATEST, name)):
            head = self._head(name)
            if head is not None:
                self._log(name, head)
        if self._catalog.head() is None:
            raise NotFound(f"nothing was published to run {self._catalog.keys.run!r}", remedy="check --run and --store")

    def _head(self, channel: str) -> Head | None:
        """The channel's head, brought back if it is missing or damaged and nothing here goes beyond what a holder has."""
        self._found.looked_at += 1
        key, damaged_etag = self._catalog.keys.head(channel), None
        try:
            head = self._catalog.head(channel)
            if head is not None:
                return head
            wrong = "it is missing"
        except Corrupt as error:
            wrong, damaged_etag = error.message, self._catalog.store.get(key, max_bytes=MAX_HEAD_BYTES).etag
        logged = [p[1] for s in self._catalog.store.list(self._catalog.keys.logs(channel)) if (p := self._catalog.keys.parse_log(s.key))]
        for holder in self._holders:
            if isinstance(holder, StoreHolder) and (found := self._adopted(holder, channel, max(logged, default=0), damaged_etag)):
                self._found.brought.append((key, holder.name))
                return found
        if logged or damaged_etag is not None:
            self._found.lost.append((key, f"{wrong}, and no holder has one that is as far as the log here"))
        return None

    def _adopted(self, holder: StoreHolder, channel: str, logged: int, damaged_etag: str | None) -> Head | None:
        other = Catalog(holder.store, self._catalog.keys.run, policy=self._catalog.policy, clock=self._catalog.clock, capability="none")
        try:
            head = other.head(channel)
            if head is None or head.move.sequence < logged:
                return None
            self._log(channel, head)
            return self._catalog.adopt_head(channel, head.data, damaged_etag=damaged_etag)
        except (Corrupt, Conflict) as error:
            logger.warning("the head of channel %r cannot be taken from %s: %s", channel, holder.name, error)
            return None

    def _log(self, channel: str, head: Head) -> None:
        """Every move that the head reaches, one after another: each names the one before."""
        own = objects.move_item(self._catalog, channel, head.ref)
        wrong = self._wrong(own)
        if wrong is not None:  # the next move will name it
            self._write(own, wrong, head.data, self._catalog.keys.head(channel))
        move = head.move
        while move.previous is not None:
            item = objects.move_item(self._catalog, channel, move.previous)
            self._found.looked_at += 1
            wrong = self._wrong(item)
            if wrong is not None and not self._bring(item, wrong):
                return
            move = self._move(channel, move.previous)

    def _move(self, channel: str, ref: MoveRef) -> Move:
        key = self._catalog.keys.log(channel, ref.sequence, ref.write_id)
        data = self._catalog.store.get(key, max_bytes=MAX_RECORD_BYTES).data
        return Move.from_envelope(Envelope.parse(data, key), run=self._catalog.keys.run, channel=channel)

    # ------------------------------------------------------------------------------------------------------------ versions

    def _records(self, refs: Sequence[VersionRef]) -> list[VersionRecord]:
        found = []
        for ref in refs:
            try:
                found.append(self._catalog.manifest_of(ref.version, ref.manifest))
            except WeightsyncError as error:
                logger.warning("version %d is left out: %s", ref.version, error)
        return found

    def _chain_of(self, version: int, refs: Sequence[VersionRef]) -> list[VersionRef]:
        """The version and all that its payloads may lead back to."""
        by_number = {ref.version: ref for ref in refs}
        self._catalog.find(version)
        self._catalog.check_kept(version)
        wanted, todo = set[int](), [version]
        while todo:
            number = todo.pop()
            if number in wanted or number not in by_number:
                continue
            wanted.add(number)
            for key in self._keys(self._catalog.keys.payloads(number)):
                parsed = self._catalog.keys.parse_payload(key)
                todo += [parsed[1]] if parsed else []
        return [by_number[number] for number in sorted(wanted)]

    def _keys(self, prefix: str) -> set[str]:
        own = {stat.key for stat in self._catalog.store.list(prefix)}
        return own.union(*(holder.keys(prefix) for holder in self._holders))

    def _payloads(self, boundary: Boundary, records: Sequence[VersionRecord]) -> list[Payload]:
        catalog, items = self._catalog, []
        ways: list[tuple[VersionRecord, int, str]] = []
        for record in records:
            version = record.ref.version
            parsed = filter(None, map(catalog.keys.parse_payload, self._keys(catalog.keys.payloads(version))))
            found = {(record.manifest.base, record.manifest.writer), *((base, writer) for _, base, writer in parsed)}
            ways += [(record, *way) for way in sorted(found) if not boundary.gone(payload_name(version, *way))]
        items = [objects.payload_item(catalog, *way) for way in ways]
        first_ones = {item.key for item, (r, *way) in zip(items, ways, strict=True) if tuple(way) == (r.manifest.base, r.manifest.writer)}
        before = len(self._found.lost)
        self._see(items)
        # A further payload that was made for another manifest is nobody's loss.
        self._found.lost[before:] = [entry for entry in self._found.lost[before:] if entry[0] in first_ones]
        return list(self._readable(ways))

    def _readable(self, ways: Iterable[tuple[VersionRecord, int, str]]) -> Iterator[Payload]:
        for record, base, writer in ways:
            try:
                yield self._catalog.payload(record, base, writer)
            except WeightsyncError as error:
                logger.info("payload left out: %s", error)

    def _files(self, record: VersionRecord) -> Iterator[objects.Item]:
        try:
            yield from objects.file_items(self._catalog, self._catalog.file_table(record.manifest.files))
        except WeightsyncError as error:
            logger.info("files of version %d are not known: %s", record.ref.version, error)

    # ------------------------------------------------------------------------------------------------------------ replicas

    def _from_replicas(self, boundary: Boundary, looked_at: set[int]) -> tuple[int, ...]:
        """Snapshots of versions that nothing leads to any more, from replicas that hold them."""
        catalog, made = self._catalog, []
        survey = Surveyor(catalog, threads=self._threads).take(boundary)
        stand = [n for n in survey.committed if not boundary.condemned(n)]
        broken = [n for n in chains(stand, survey.edges).broken if n in looked_at]
        for holder in self._holders:
            held = holder.replica.version if isinstance(holder, ReplicaHolder) else None
            if not isinstance(holder, ReplicaHolder) or held is None or held.version not in broken:
                continue
            record = survey.records.get(held.version)
            if record is None or record.ref != held or record.manifest.root != holder.replica.root or holder.replica.verify():
                continue
            try:
                payload = write_snapshot(catalog, record, holder.replica)
            except Denied as error:
                self._found.lost.append((version_name(held.version), f"a snapshot of it needs a publisher key: {error.message}"))
                continue
            made.append(payload.target.version)
        if made:
            survey = Surveyor(catalog, threads=self._threads).take(boundary)
            broken = [n for n in chains(stand, survey.edges).broken if n in looked_at]
        self._found.lost += [(version_name(n), "no chain leads to it") for n in broken]
        return tuple(made)
