"""The last versions, kept beside the image as what tells each from the next: going back, or forth again, needs no network.

    past-<number>   magic, length of the head, head (sealed: which two versions), packed flips, index, length of the index and its digest

A file is written beside and renamed, so it is whole. It is only ever a saving: damaged, missing or crowded out, the way leads through the
store. What is made of it counts only when every leaf is the one of the version, whose table is kept with it.
"""

import logging
import os
import re
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import xxhash
from blake3 import blake3
from numpy.typing import NDArray

from weightsync.errors import Corrupt, WeightsyncError
from weightsync.format import canonical
from weightsync.format.digests import DigestTable
from weightsync.format.envelope import Envelope, seal
from weightsync.format.fields import Fields
from weightsync.format.layout import Layout
from weightsync.format.limits import MAX_DIGESTS_BYTES
from weightsync.format.refs import HEX_DIGEST, VersionRef
from weightsync.replica.directory import PrivateDirectory, read_exactly, write_all
from weightsync.replica.flips import Flip, Packed, unpack
from weightsync.replica.state import LAYOUT_PREFIX, PAST_PREFIX, TABLE_PREFIX, State

_log = logging.getLogger(__name__)
_MAGIC = b"WSPAST01"
_START = struct.Struct("<8sI")
_END = struct.Struct("<Q16s")
_INDEX = np.dtype([("chunk", "<u4"), ("lanes", "<u4"), ("positions", "<u4"), ("bits", "<u4")])
_NAME = re.compile(PAST_PREFIX + r"([0-9]{12})")
_MAX_HEAD_BYTES = 4096


@dataclass(frozen=True)
class PastLimits:
    """How much is kept: pairs of successive versions, and bytes as a share of the image's."""

    versions: int = 16
    image_share: float = 0.25


NOTHING_PAST = PastLimits(versions=0, image_share=0.0)


@dataclass(frozen=True)
class End:
    """One of the two versions of a pair; `layout` and `table` are digests of the files named after them."""

    version: VersionRef
    layout: str
    table: str
    root: str

    @classmethod
    def of(cls, state: State) -> "End":
        """A version held."""
        return cls(state.version, state.layout, state.table, state.root)

    def to_body(self) -> dict[str, object]:
        """JSON form."""
        return {"layout": self.layout, "root": self.root, "table": self.table, "version": self.version.to_body()}

    @classmethod
    def take(cls, fields: Fields, name: str) -> "End":
        """Reads the field `name`."""
        inner = fields.object(name)
        layout, table, root = (inner.hex(part, HEX_DIGEST) for part in ("layout", "table", "root"))
        end = cls(VersionRef.take(inner, "version"), layout, table, root)
        inner.done()
        return end


class Pair:
    """Two versions and what tells them apart, in one file. Reading is safe from many threads."""

    def __init__(self, directory: PrivateDirectory, name: str) -> None:
        """Opens it. Raises `Corrupt`."""
        self.name = name
        try:
            self._fd = directory.open(name, os.O_RDONLY)
        except FileNotFoundError:
            raise Corrupt(f"{name} is missing") from None
        try:
            self.nbytes = os.fstat(self._fd).st_size
            self.older, self.newer, start = self._read_head()
            self._index, self._starts = self._read_index(start)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def chunks(self) -> NDArray[np.uint32]:
        """Numbers of the chunks that differ, ascending."""
        return self._index["chunk"]

    def other(self, version: VersionRef) -> End:
        """Where it leads from one of the two."""
        return self.older if version == self.newer.version else self.newer

    def flip(self, layout: Layout, number: int) -> Flip | None:
        """What tells the two states of a chunk apart; None: nothing. Raises `Corrupt`."""
        at = int(np.searchsorted(self._index["chunk"], number))
        if at == len(self._index) or self._index["chunk"][at] != number:
            return None
        _, lanes, first, second = (int(value) for value in self._index[at])
        data = read_exactly(self._fd, first + second, int(self._starts[at]))
        if len(data) != first + second:
            raise Corrupt(f"{self.name} was cut")
        chunk = layout.chunks[number]
        return unpack(layout.tensors[chunk.tensor].dtype, Packed(lanes, data[:first], data[first:]), chunk.lanes)

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_head(self) -> tuple[End, End, int]:
        data = read_exactly(self._fd, _START.size)
        if len(data) != _START.size:
            raise Corrupt(f"{self.name} was cut")
        magic, size = _START.unpack(data)
        if magic != _MAGIC or size > _MAX_HEAD_BYTES:
            raise Corrupt(f"{self.name} does not keep two versions")
        fields = Fields(Envelope.parse(read_exactly(self._fd, size, _START.size), self.name).value(self.name), self.name)
        fields.constant("kind", "past")
        fields.constant("format", 1)
        older, newer = End.take(fields, "older"), End.take(fields, "newer")
        fields.done()
        if older.layout != newer.layout or older.version == newer.version:
            raise Corrupt(f"{self.name} contradicts itself")
        return older, newer, _START.size + size

    def _read_index(self, start: int) -> tuple[NDArray[np.void], NDArray[np.uint64]]:
        size, digest = _END.unpack(read_exactly(self._fd, _END.size, self.nbytes - _END.size)) if self.nbytes >= _END.size else (0, b"")
        place = self.nbytes - _END.size - size
        data = read_exactly(self._fd, size, place) if place >= start else b""
        if xxhash.xxh3_128_digest(data) != digest or size % _INDEX.itemsize:
            raise Corrupt(f"{self.name} has no sound index")
        index = np.frombuffer(data, _INDEX)
        ends = start + np.cumsum(index["positions"].astype(np.uint64) + index["bits"], dtype=np.uint64)
        if (int(ends[-1]) if len(ends) else start) != place or (np.diff(index["chunk"].astype(np.int64)) <= 0).any():
            raise Corrupt(f"the flips of {self.name} do not fill it")
        return index, ends - index["positions"] - index["bits"]


class Past:
    """The pairs in a replica's directory, oldest first. Used under the replica's lock by its thread; pairs are read by many."""

    def __init__(self, directory: PrivateDirectory, limits: PastLimits) -> None:
        self.limits = limits
        self._directory = directory
        self._pairs: list[Pair] = []

    def load(self, layout: str) -> None:
        """Opens what a process left, and removes what is of no use with the layout held."""
        for name in self._directory.names():
            if not _NAME.fullmatch(name):
                continue
            try:
                pair = Pair(self._directory, name)
            except WeightsyncError as error:
                _log.info("an older version is forgotten: %s", error)
                self._directory.remove(name)
                continue
            self._pairs.append(pair)
            if pair.newer.layout != layout:
                self.drop(pair)

    @property
    def files(self) -> frozenset[str]:
        """Names of the files that it needs."""
        ends = [end for pair in self._pairs for end in (pair.older, pair.newer)]
        tables = {TABLE_PREFIX + end.table for end in ends} | {LAYOUT_PREFIX + end.layout for end in ends}
        return frozenset(tables | {pair.name for pair in self._pairs})

    @property
    def nbytes(self) -> int:
        """Bytes kept, without tables."""
        return sum(pair.nbytes for pair in self._pairs)

    def reach(self, start: VersionRef | None) -> frozenset[VersionRef]:
        """Versions that can be made from `start`, itself among them."""
        return frozenset() if start is None else frozenset(self._ways(start))

    def way(self, start: VersionRef, end: VersionRef) -> list[Pair]:
        """The fewest pairs that lead from one version to another. Raises `Corrupt` when there are none (any more)."""
        found = self._ways(start).get(end)
        if found is None:
            raise Corrupt(f"version {end.version} is not kept beside the image")
        return found

    def ancestors(self, version: VersionRef) -> tuple[VersionRef, ...]:
        """Versions that came before one another, newest first, as far as they are kept."""
        before = {pair.newer.version: pair.older.version for pair in self._pairs}
        found: list[VersionRef] = []
        while version in before and before[version] not in found:
            version = before[version]
            found.append(version)
        return tuple(found)

    def end(self, version: VersionRef) -> End:
        """What is known of a version in reach."""
        for pair in reversed(self._pairs):
            for end in (pair.newer, pair.older):
                if end.version == version:
                    return end
        raise Corrupt(f"version {version.version} is not kept beside the image")

    def table(self, version: VersionRef, layout: Layout) -> DigestTable:
        """Leaves and sums of a version in reach. Raises `Corrupt`."""
        end = self.end(version)
        data = self._directory.read(TABLE_PREFIX + end.table, MAX_DIGESTS_BYTES)
        if data is None or blake3(data).hexdigest() != end.table or end.layout != layout.digest:
            raise Corrupt(f"the leaves of version {version.version} are missing or damaged")
        return DigestTable.parse(layout, data, end.root)

    def add(self, older: State, newer: State, flips: Iterable[tuple[int, Packed]]) -> Pair:
        """Keeps a pair; `flips` by ascending chunk. Raises `NoSpace` and its kin."""
        name = f"{PAST_PREFIX}{self._next():012}"
        body = {"format": 1, "kind": "past", "newer": End.of(newer).to_body(), "older": End.of(older).to_body()}
        head = seal(canonical.to_bytes(body)).data
        with self._directory.fresh(name) as fd:
            write_all(fd, _START.pack(_MAGIC, len(head)) + head)
            rows = []
            for number, packed in flips:
                write_all(fd, packed.positions + packed.bits)
                rows.append((number, packed.lanes, len(packed.positions), len(packed.bits)))
            index = np.array(rows, _INDEX).tobytes()
            write_all(fd, index + _END.pack(len(index), xxhash.xxh3_128_digest(index)))
        self._pairs.append(Pair(self._directory, name))
        return self._pairs[-1]

    def trim(self, held: State | None, image_bytes: int) -> None:
        """Forgets what cannot be reached from the version held, and the oldest beyond the limits; removes tables that nothing names."""
        within = self.reach(held.version) if held else frozenset()
        for pair in [pair for pair in self._pairs if pair.newer.version not in within]:
            self.drop(pair)
        while self._pairs and (len(self._pairs) > self.limits.versions or self.nbytes > self.limits.image_share * image_bytes):
            self.drop(self._pairs[0])
        needed = self.files | (held.files if held else frozenset())
        for name in self._directory.names():
            if name.startswith(TABLE_PREFIX) and name not in needed:
                self._directory.remove(name)

    def drop(self, pair: Pair) -> None:
        """Forgets a pair."""
        if pair in self._pairs:
            self._pairs.remove(pair)
            pair.close()
            self._directory.remove(pair.name)

    def clear(self) -> None:
        """Forgets everything, also what was not opened."""
        self.close()
        for name in self._directory.names():
            if _NAME.fullmatch(name):
                self._directory.remove(name)

    def close(self) -> None:
        """Closes the files."""
        for pair in self._pairs:
            pair.close()
        self._pairs.clear()

    def __iter__(self) -> Iterator[Pair]:
        return iter(tuple(self._pairs))

    def _next(self) -> int:
        return int(self._pairs[-1].name.removeprefix(PAST_PREFIX)) + 1 if self._pairs else 1

    def _ways(self, start: VersionRef) -> dict[VersionRef, list[Pair]]:
        found: dict[VersionRef, list[Pair]] = {start: []}
        queue = deque([start])
        while queue:
            here = queue.popleft()
            for pair in self._pairs:
                if here not in (pair.older.version, pair.newer.version):
                    continue
                there = pair.other(here).version
                if there not in found:
                    found[there] = [*found[here], pair]
                    queue.append(there)
        return found
