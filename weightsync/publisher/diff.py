"""New bytes against a base: frames for what changed, the leaf of every chunk, the sums. In parallel, in order, in bounded memory.

Chunks are taken in groups (one call per group keeps the cost of a small tensor low). Each worker reads a chunk, digests it, encodes it
against the base and hands the frame to `check`, which decodes it where readers will and compares the leaf: what cannot be rebuilt is
never uploaded. Frames come out ascending, so they are packed as they come.
"""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from weightsync.codec import encode_delta, encode_snapshot
from weightsync.errors import Corrupt
from weightsync.failpoints import failpoint
from weightsync.format.digests import DigestTable
from weightsync.format.layout import LEAF_BYTES, Chunk, Layout
from weightsync.format.root import leaf_digest
from weightsync.publisher.parallel import in_order
from weightsync.publisher.source import Source

GROUP_BYTES = 8 << 20  # of chunks taken by a worker at once
GROUP_CHUNKS = 256

Check = Callable[[int, bytes, bytes], None]  # chunk number, frame, leaf of the new bytes; called from the workers


class Base(Protocol):
    """A verified state in memory."""

    def chunk(self, number: int) -> memoryview:
        """The bytes of a chunk."""
        ...


class Encoded(NamedTuple):
    """A group of chunks. `sums`: (tensor, what its sum gains) of each changed chunk."""

    frames: list[tuple[int, bytes]]
    leaves: bytes
    sums: list[tuple[int, int]]
    changed_lanes: int


@dataclass
class Tally:
    """What a finished diff adds up to; filled while the frames are taken."""

    leaves: bytearray = field(default_factory=bytearray)
    sums: list[int] = field(default_factory=list)
    changed_lanes: int = 0

    def add(self, group: Encoded) -> None:
        """Takes in the next group in order."""
        self.leaves += group.leaves
        for tensor, gain in group.sums:
            self.sums[tensor] += gain
        self.changed_lanes += group.changed_lanes

    def table(self) -> DigestTable:
        """Leaves and sums of the new state."""
        return DigestTable(bytes(self.leaves), np.array([total % (1 << 64) for total in self.sums], np.uint64))


class Differ:
    """One diff of `source` against `base` with its table, both of the same layout; against nothing (a snapshot) when they are None."""

    def __init__(self, source: Source, base: tuple[Base, DigestTable] | None, check: Check) -> None:
        self._source = source
        self._base = base
        self._check = check
        self._local = threading.local()
        self._buffer_bytes = max((chunk.nbytes for chunk in source.layout.chunks), default=0)
        self.tally = Tally(sums=base[1].sums.tolist() if base else [0] * len(source.layout.tensors))

    def frames(self, *, threads: int) -> Generator[list[tuple[int, bytes]], None, None]:
        """The frames of changed chunks, ascending, in groups; `tally` is complete after the last one.

        Close it if you do not take them all: after that no worker reads, encodes or checks any more.
        """
        with closing(in_order(self._encode, groups(self._source.layout), threads=threads, window=2 * threads + 1)) as encoded:
            for group in encoded:
                self.tally.add(group)
                failpoint("publish.mid_diff")
                if group.frames:
                    yield group.frames

    def _encode(self, chunks: list[Chunk]) -> Encoded:
        return self._snapshot(chunks) if self._base is None else self._delta(chunks, *self._base)

    def _delta(self, chunks: list[Chunk], base: Base, table: DigestTable) -> Encoded:
        layout, read, into = self._source.layout, self._source.read, self._buffer()
        kind, size, old_leaves = layout.leaf, LEAF_BYTES[layout.leaf], table.leaves
        frames, leaves, sums, changed_lanes = [], [], [], 0
        for chunk in chunks:
            new = read(chunk, into)
            leaf = leaf_digest(kind, new)
            number = chunk.number
            frame, changed, gain = encode_delta(layout.tensors[chunk.tensor].dtype, base.chunk(number), new, first_lane=chunk.start_lane)
            leaves.append(leaf)
            if changed:
                self._check(number, frame, leaf)
                frames.append((number, frame))
                sums.append((chunk.tensor, gain))
                changed_lanes += changed
            elif leaf != old_leaves[number * size : number * size + size]:
                raise _rotten(layout, chunk)
        return Encoded(frames, b"".join(leaves), sums, changed_lanes)

    def _snapshot(self, chunks: list[Chunk]) -> Encoded:
        layout, read, into = self._source.layout, self._source.read, self._buffer()
        frames, leaves, sums, changed_lanes = [], [], [], 0
        for chunk in chunks:
            new = read(chunk, into)
            leaf = leaf_digest(layout.leaf, new)
            frame, changed, gain = encode_snapshot(layout.tensors[chunk.tensor].dtype, new, first_lane=chunk.start_lane)
            self._check(chunk.number, frame, leaf)
            leaves.append(leaf)
            frames.append((chunk.number, frame))
            sums.append((chunk.tensor, gain))
            changed_lanes += changed
        return Encoded(frames, b"".join(leaves), sums, changed_lanes)

    def _buffer(self) -> memoryview:
        """This worker's own buffer; its address is off a page's start, since equal offsets in two streams fight for the same cache sets."""
        view: memoryview | None = getattr(self._local, "buffer", None)
        if view is None:
            view = memoryview(bytearray(self._buffer_bytes + 2112))[2112:]
            self._local.buffer = view
        return view


def groups(layout: Layout) -> Iterator[list[Chunk]]:
    """Consecutive chunks of about `GROUP_BYTES`, at most `GROUP_CHUNKS` of them."""
    group: list[Chunk] = []
    nbytes = 0
    for chunk in layout.chunks:
        group.append(chunk)
        nbytes += chunk.nbytes
        if nbytes >= GROUP_BYTES or len(group) >= GROUP_CHUNKS:
            yield group
            group, nbytes = [], 0
    if group:
        yield group


def _rotten(layout: Layout, chunk: Chunk) -> Corrupt:
    return Corrupt(
        f"the local base of chunk {chunk.number} (tensor {layout.tensors[chunk.tensor].name!r}) is not what was published",
        remedy="memory or disk is failing: check the machine; delete the cache to rebuild the base from the store",
    )
