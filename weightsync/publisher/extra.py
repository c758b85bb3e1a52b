"""One further payload of a committed version, a fold or a snapshot, made from the base without keeping the publisher from it.

The base may have moved on meanwhile: what it was is recovered chunk by chunk from the older versions kept beside it, and hashed before it
is used. A job that was cut short goes on where it was, and does not send again what the store has.
"""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from weightsync.catalog import Catalog, NewPayload, VersionRecord
from weightsync.codec import Changes, decode, encode_delta, encode_snapshot, scatter
from weightsync.errors import AlreadyExists, Corrupt, NotFound
from weightsync.format.digests import DigestTable
from weightsync.format.layout import Chunk, Layout
from weightsync.format.packing import Packed, pack
from weightsync.format.refs import VersionRef
from weightsync.format.root import leaf_digest
from weightsync.format.versions import Form, Shard
from weightsync.publisher.diff import groups
from weightsync.publisher.gate import Gate
from weightsync.replica.past import Pair
from weightsync.replica.remember import chunk_at
from weightsync.replica.replica import Replica
from weightsync.store.settle import ensure

logger = logging.getLogger(__name__)


class OutOfReach(Exception):
    """The base has moved on too far, or no more turns are given: this payload will not be made."""


class Extra:
    """`base` None: a snapshot. Run it until it returns; after an error of the store it may be run again."""

    def __init__(self, record: VersionRecord, base: VersionRef | None, writer: str, *, shard_bytes: int, threads: int) -> None:
        self.record, self.base, self.writer = record, base, writer
        self._shard_bytes, self._threads = shard_bytes, threads
        self._shards: list[Shard] = []
        self._frames: list[list[tuple[int, bytes]]] = []  # not yet in a shard that stands
        self._next = 0  # group
        self._changed = 0
        self._tables: tuple[DigestTable, DigestTable | None] | None = None

    @property
    def form(self) -> Form:
        """What it is."""
        return Form.FOLD if self.base else Form.SNAPSHOT

    @property
    def nbytes(self) -> int:
        """Bytes of its shards so far."""
        return sum(shard.nbytes for shard in self._shards)

    def __str__(self) -> str:
        version = self.record.ref.version
        return f"fold {self.base.version} -> {version}" if self.base else f"snapshot of {version}"

    def run(self, catalog: Catalog, replica: Replica, gate: Gate) -> None:
        """Makes it, and adds it to the store. Raises `OutOfReach`, and what the store raises."""
        catalog.check_kept(self.record.ref.version)
        layout = catalog.layout(self.record.manifest.layout)
        batches = list(_batches(layout, self._threads))
        with ThreadPoolExecutor(self._threads, thread_name_prefix="weightsync-extra") as pool:
            while self._next < len(batches):
                self._frames += self._make(replica, gate, layout, batches[self._next], pool)
                self._next += 1
                self._send(catalog, everything=self._next == len(batches))
        self._send(catalog, everything=True)
        new = NewPayload(self.writer, self.base, self.form, tuple(self._shards), self._changed)
        try:
            catalog.add_payload(self.record, new)
        except AlreadyExists:
            logger.info("%s stands already", self)

    def _make(
        self, replica: Replica, gate: Gate, layout: Layout, batch: list[list[Chunk]], pool: ThreadPoolExecutor
    ) -> list[list[tuple[int, bytes]]]:
        """Frames of a few groups of chunks, in one turn."""
        with gate.turn() as going:
            if not going or replica.version is None or replica.layout is None or replica.layout.digest != layout.digest:
                raise OutOfReach(f"{self}: the base is gone")
            to, back = self._ways(replica)
            table, older = self._known_leaves(replica, layout)

            def work(chunks: list[Chunk]) -> tuple[list[tuple[int, bytes]], int]:
                frames, changed = [], 0
                for chunk in chunks:
                    new = chunk_at(replica.image, to, chunk.number)
                    _check(layout, chunk, new, table)
                    if older is None:
                        frame, lanes, _ = encode_snapshot(layout.tensors[chunk.tensor].dtype, new)
                    elif table.leaf(layout, chunk.number) == older.leaf(layout, chunk.number):
                        continue
                    else:
                        old = chunk_at(replica.image, back, chunk.number)
                        _check(layout, chunk, old, older)
                        frame, lanes = _delta(layout, chunk, old, new)
                        _check(layout, chunk, old, table)  # what cannot be rebuilt is never uploaded
                    frames.append((chunk.number, frame))
                    changed += lanes
                return frames, changed

            found = list(pool.map(work, batch))
        self._changed += sum(changed for _, changed in found)
        return [frames for frames, _ in found if frames]

    def _ways(self, replica: Replica) -> tuple[list[Pair], list[Pair]]:
        now, past = replica.version, replica.past
        if now is None:
            raise OutOfReach(f"{self}: the base is gone")
        try:
            return past.way(now, self.record.ref), past.way(now, self.base) if self.base else []
        except Corrupt as error:
            raise OutOfReach(f"{self}: {error.message}") from error

    def _known_leaves(self, replica: Replica, layout: Layout) -> tuple[DigestTable, DigestTable | None]:
        if self._tables is None:

            def table(version: VersionRef) -> DigestTable:
                if version == replica.version and replica.table is not None:
                    return replica.table
                return replica.past.table(version, layout)

            try:
                self._tables = table(self.record.ref), table(self.base) if self.base else None
            except Corrupt as error:
                raise OutOfReach(f"{self}: {error.message}") from error
        return self._tables

    def _send(self, catalog: Catalog, *, everything: bool) -> None:
        """Uploads full shards; the rest waits for more frames, or goes too. What was sent is never sent again."""
        if not everything and sum(len(frame) for group in self._frames for _, frame in group) < self._shard_bytes:
            return
        waiting, self._frames = self._frames, []
        kept: list[list[tuple[int, bytes]]] = list(waiting)
        for packed in pack(waiting, shard_bytes=self._shard_bytes):
            if not everything and packed.entry.nbytes < self._shard_bytes:
                break
            try:
                self._upload(catalog, packed)
            except BaseException:
                self._frames = kept
                raise
            self._shards.append(packed.entry)
            kept = _after(kept, packed.entry.last)
        self._frames = kept

    def _upload(self, catalog: Catalog, packed: Packed) -> None:
        base = self.base.version if self.base else 0
        key = catalog.keys.shard(self.writer, self.record.ref.version, base, packed.entry.digest)
        try:
            if catalog.store.stat(key).size_bytes == packed.entry.nbytes:
                return
        except NotFound:
            pass
        ensure(catalog.store, key, packed.data, clock=catalog.clock)


def _batches(layout: Layout, threads: int) -> Iterator[list[list[Chunk]]]:
    batch: list[list[Chunk]] = []
    for group in groups(layout):
        batch.append(group)
        if len(batch) == threads:
            yield batch
            batch = []
    if batch:
        yield batch


def _after(frames: list[list[tuple[int, bytes]]], last: int) -> list[list[tuple[int, bytes]]]:
    left = ([entry for entry in group if entry[0] > last] for group in frames)
    return [group for group in left if group]


def _delta(layout: Layout, chunk: Chunk, old: memoryview, new: memoryview) -> tuple[bytes, int]:
    """A frame and how many lanes it changes; `old` is what it makes of it afterwards."""
    dtype = layout.tensors[chunk.tensor].dtype
    frame, lanes, _ = encode_delta(dtype, old, new)
    found = decode(dtype, frame, old, chunk.lanes)
    if isinstance(found, Changes):
        scatter(old, found.positions, found.values)
    else:
        old[:] = found.data
    return frame, lanes


def _check(layout: Layout, chunk: Chunk, data: memoryview, table: DigestTable) -> None:
    if leaf_digest(layout.leaf, data) != table.leaf(layout, chunk.number):
        raise OutOfReach(f"chunk {chunk.number} could not be recovered")
