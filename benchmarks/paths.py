"""The way of a checkpoint through a codec: page-cached file -> frames with leaves, and frames -> image with verified leaves."""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import xxhash

from benchmarks.pairs import CHUNK_LANES, Chunk, ChunkPair, Lanes, Pair, write_tensors
from benchmarks.peers import ChunkCodec
from weightsync import codec as weightsync_codec
from weightsync.codec import Changes
from weightsync.errors import Corrupt

Leaves = list[bytes]


def leaf(lanes: Lanes) -> bytes:
    """The digest of a chunk: xxh3-128."""
    return xxhash.xxh3_128_digest(lanes.data)


class ClassGap:
    """weightsync's own codec; `classes` 1 makes frames that decode without the base."""

    who = "weightsync"

    def __init__(self, classes: int | None = None) -> None:
        self.name = "class-gap, blind" if classes == 1 else "class-gap"
        self._classes = classes

    def encode(self, pair: ChunkPair) -> bytes:
        """The sum of the tensor is brought up to date too; peers have none."""
        return weightsync_codec.encode_delta(pair.dtype, pair.old, pair.new, first_lane=pair.first_lane, classes=self._classes).frame

    def apply(self, frame: bytes, target: Chunk) -> None:
        """Everything is checked before the first write."""
        if not frame:
            return
        found = weightsync_codec.decode(target.dtype, frame, target.lanes, target.lanes.size)
        if isinstance(found, Changes):
            weightsync_codec.scatter(target.lanes, found.positions, found.values)
        else:
            target.lanes.view(np.uint8)[:] = found


class Snapshot:
    """A full publish: each chunk on its own, no base."""

    name = "snapshot"
    who = "weightsync"

    def encode(self, pair: ChunkPair) -> bytes:
        """Byte planes and zstd, or raw."""
        return weightsync_codec.encode_snapshot(pair.dtype, pair.new, first_lane=pair.first_lane).frame

    def apply(self, frame: bytes, target: Chunk) -> None:
        """Overwrites the chunk."""
        found = weightsync_codec.decode(target.dtype, frame, None, target.lanes.size)
        if not isinstance(found, Changes):
            target.lanes.view(np.uint8)[:] = found


class CheckpointFile:
    """The new checkpoint of a pair as a safetensors file, read chunk by chunk into one buffer that stays in the cache."""

    def __init__(self, path: Path, pair: Pair) -> None:
        write_tensors(path, {tensor.name: (tensor.dtype, tensor.shape, tensor.new) for tensor in pair.tensors})
        self._file = os.open(path, os.O_RDONLY)
        self._buffer = np.empty(8 * CHUNK_LANES, np.uint8)
        offset = path.stat().st_size - pair.nbytes
        self._places: list[tuple[int, int]] = []
        for chunk in pair.chunks():
            self._places.append((offset, chunk.new.nbytes))
            offset += chunk.new.nbytes

    def read(self, index: int, like: Lanes) -> Lanes:
        """Chunk number `index`, valid until the next call."""
        offset, nbytes = self._places[index]
        view = self._buffer[:nbytes]
        if os.preadv(self._file, [view.data], offset) != nbytes:
            raise Corrupt("the checkpoint file of the benchmark ends early")
        return view.view(like.dtype)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._file)


def encode(codec: ChunkCodec, chunks: list[ChunkPair]) -> list[bytes]:
    """Frames from memory, nothing else."""
    return [codec.encode(chunk) for chunk in chunks]


def encode_leaves(codec: ChunkCodec, chunks: list[ChunkPair]) -> tuple[list[bytes], Leaves]:
    """Frames and leaves, from memory."""
    leaves = [leaf(chunk.new) for chunk in chunks]
    return encode(codec, chunks), leaves


def encode_file(codec: ChunkCodec, chunks: list[ChunkPair], file: CheckpointFile) -> tuple[list[bytes], Leaves]:
    """Frames and leaves, the new chunks read from `file`."""
    frames, leaves = [], []
    for index, chunk in enumerate(chunks):
        new = file.read(index, chunk.new)
        leaves.append(leaf(new))
        frames.append(codec.encode(ChunkPair(chunk.dtype, chunk.first_lane, chunk.old, new)))
    return frames, leaves


def decode(codec: ChunkCodec, frames: list[bytes], image: list[Chunk]) -> None:
    """Turn `image` from the old checkpoint into the new one."""
    for frame, chunk in zip(frames, image, strict=True):
        codec.apply(frame, chunk)


def decode_verified(codec: ChunkCodec, frames: list[bytes], image: list[Chunk], leaves: Leaves) -> None:
    """The same, and every leaf is checked, of unchanged chunks too."""
    for frame, chunk, expected in zip(frames, image, leaves, strict=True):
        codec.apply(frame, chunk)
        if leaf(chunk.lanes) != expected:
            raise Corrupt(f"{codec.name}: a chunk differs from the checkpoint")


def image_of(chunks: list[ChunkPair]) -> list[Chunk]:
    """A copy of the old checkpoint in one piece of memory, as a host holds it."""
    memory = np.empty(sum(_aligned(chunk.old.nbytes) for chunk in chunks), np.uint8)
    image, offset = [], 0
    for chunk in chunks:
        lanes = memory[offset : offset + chunk.old.nbytes].view(chunk.old.dtype)
        lanes[:] = chunk.old
        image.append(Chunk(chunk.dtype, chunk.first_lane, lanes))
        offset += _aligned(chunk.old.nbytes)
    return image


def _aligned(nbytes: int) -> int:
    return nbytes + -nbytes % 64


def reset(image: list[Chunk], chunks: list[ChunkPair]) -> None:
    """Bring `image` back to the old checkpoint."""
    for place, chunk in zip(image, chunks, strict=True):
        place.lanes[:] = chunk.old
