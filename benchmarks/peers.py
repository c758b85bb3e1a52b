"""The encodings of other systems, chunk by chunk, as fast as NumPy and zstandard allow.

Scratch memory is kept between calls, operations write in place, chunks fit the cache: nothing here is slower than the original,
and most of it is faster. Chunks without a change cost nothing, as unchanged tensors do in the originals. All of them are lossless.
"""

from typing import Protocol

import numpy as np
import zstandard
from numpy.typing import NDArray

from benchmarks.pairs import CHUNK_LANES, Chunk, ChunkPair, Lanes

ZSTD_LEVEL = 1  # what all of them use


class ChunkCodec(Protocol):
    """An encoding of the difference of two chunks; `who` names the systems that send it."""

    name: str
    who: str

    def encode(self, pair: ChunkPair) -> bytes:
        """The frame that carries `pair.old` to `pair.new`; empty when they are equal."""
        ...

    def apply(self, frame: bytes, target: Chunk) -> None:
        """Turn `target.lanes`, which hold the old chunk, into the new one, in place."""
        ...


class _Scratch:
    """Memory reused from chunk to chunk."""

    def __init__(self) -> None:
        self._bytes = np.empty(8 * CHUNK_LANES, np.uint8)
        self._flags = np.empty(CHUNK_LANES, np.bool_)

    def lanes(self, like: Lanes) -> Lanes:
        return self._bytes[: like.nbytes].view(like.dtype)

    def changed(self, old: Lanes, new: Lanes) -> NDArray[np.intp]:
        """Ascending positions where `old` and `new` differ."""
        flags = np.not_equal(old, new, out=self._flags[: old.size])
        return np.flatnonzero(flags)


def _any(lanes: Lanes) -> bool:
    return bool(lanes.view(np.uint8).max(initial=0))  # four times as fast as lanes.any()


class IndexValues:
    """int32 positions, then the new values."""

    name = "int32 index + values"
    who = "verl, vLLM sparse, TRL"

    def __init__(self) -> None:
        self._scratch = _Scratch()

    def encode(self, pair: ChunkPair) -> bytes:
        """Four bytes and a value per change."""
        positions = self._scratch.changed(pair.old, pair.new)
        return positions.astype("<i4").tobytes() + pair.new.take(positions).tobytes()

    def apply(self, frame: bytes, target: Chunk) -> None:
        """Scatter."""
        count = len(frame) // (4 + target.lanes.itemsize)
        target.lanes[np.frombuffer(frame, "<i4", count)] = np.frombuffer(frame, target.lanes.dtype, count, 4 * count)


class GapsValues:
    """Gaps between positions as bytes (255 means: go on by 255), then the new values, each through zstd.

    Of the forms in use (row and column gaps in u8 and u16, flat gaps in u16, one frame or two) this one came out smallest.
    """

    name = "gaps + values, zstd-1"
    who = "PULSE / grail, NeMo RL"

    def __init__(self) -> None:
        self._scratch = _Scratch()
        self._compress = zstandard.ZstdCompressor(ZSTD_LEVEL).compress
        self._decompress = zstandard.ZstdDecompressor().decompress

    def encode(self, pair: ChunkPair) -> bytes:
        """u32 length of the compressed gaps, the gaps, the values."""
        positions = self._scratch.changed(pair.old, pair.new)
        if not positions.size:
            return b""
        gaps = np.diff(positions, prepend=-1) - 1
        ends = np.cumsum(gaps // 255 + 1)
        steps = np.full(ends[-1], 255, np.uint8)
        steps[ends - 1] = gaps % 255
        packed = self._compress(steps.data)
        return len(packed).to_bytes(4, "little") + packed + self._compress(pair.new.take(positions).data)

    def apply(self, frame: bytes, target: Chunk) -> None:
        """Running sum of the gaps, then scatter."""
        if not frame:
            return
        values_at = 4 + int.from_bytes(frame[:4], "little")
        steps = np.frombuffer(self._decompress(frame[4:values_at]), np.uint8)
        positions = np.cumsum(steps, dtype=np.intp)[steps != 255]
        positions += np.arange(positions.size)
        target.lanes[positions] = np.frombuffer(self._decompress(frame[values_at:]), target.lanes.dtype)


class Xor:
    """XOR of the bits, through zstd."""

    name = "XOR, zstd-1"
    who = "slime, SkyRL, ModelExpress"

    def __init__(self) -> None:
        self._scratch = _Scratch()
        self._compress = zstandard.ZstdCompressor(ZSTD_LEVEL).compress
        self._decompress = zstandard.ZstdDecompressor().decompress

    def encode(self, pair: ChunkPair) -> bytes:
        """One zstd frame of the chunk's size."""
        difference = np.bitwise_xor(pair.old, pair.new, out=self._scratch.lanes(pair.old))
        return self._compress(difference.data) if _any(difference) else b""

    def apply(self, frame: bytes, target: Chunk) -> None:
        """XOR in place."""
        if frame:
            np.bitwise_xor(target.lanes, np.frombuffer(self._decompress(frame), target.lanes.dtype), out=target.lanes)


class XorPlanes:
    """XOR of the bits, split into byte planes, through zstd."""

    name = "XOR planes, zstd-1"
    who = "the best form of XOR"

    def __init__(self) -> None:
        self._scratch = _Scratch()
        self._planes = np.empty(8 * CHUNK_LANES, np.uint8)
        self._wide = np.empty(8 * CHUNK_LANES, np.uint8)
        self._compress = zstandard.ZstdCompressor(ZSTD_LEVEL).compress
        self._decompress = zstandard.ZstdDecompressor().decompress

    def encode(self, pair: ChunkPair) -> bytes:
        """One zstd frame of all planes, the lowest byte first."""
        difference = np.bitwise_xor(pair.old, pair.new, out=self._scratch.lanes(pair.old))
        if not _any(difference):
            return b""
        planes = self._planes[: difference.nbytes].reshape(difference.itemsize, difference.size)
        for plane in planes:
            np.copyto(plane, difference, casting="unsafe")
            if len(planes) > 1:
                np.right_shift(difference, 8, out=difference)
        return self._compress(planes.data)

    def apply(self, frame: bytes, target: Chunk) -> None:
        """Join the planes and XOR in place."""
        if not frame:
            return
        lanes = target.lanes
        planes = np.frombuffer(self._decompress(frame), np.uint8).reshape(lanes.itemsize, lanes.size)
        wide = self._wide[: lanes.nbytes].view(lanes.dtype)
        for index, plane in enumerate(planes):
            np.copyto(wide, plane)
            if index:
                np.left_shift(wide, 8 * index, out=wide)
            np.bitwise_xor(lanes, wide, out=lanes)


def peers() -> list[ChunkCodec]:
    """One of each, with its own scratch memory."""
    return [IndexValues(), GapsValues(), Xor(), XorPlanes()]
