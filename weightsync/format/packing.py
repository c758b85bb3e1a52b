"""Frames to shards: cut by size, in order, so that the same frames always make the same objects."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from blake3 import blake3

from weightsync.format.shard import pack_shard
from weightsync.format.versions import Shard

SHARD_BYTES = 32 << 20


class Packed(NamedTuple):
    """A shard's entry in a payload, and its bytes."""

    entry: Shard
    data: bytes


def pack(groups: Iterable[list[tuple[int, bytes]]], *, shard_bytes: int = SHARD_BYTES) -> Iterator[Packed]:
    """Shards of at least `shard_bytes` of frames (but for the last), each made as soon as it is full."""
    frames: list[tuple[int, bytes]] = []
    nbytes = 0
    for group in groups:
        for number, frame in group:
            frames.append((number, frame))
            nbytes += len(frame)
            if nbytes >= shard_bytes:
                yield _seal(frames)
                frames, nbytes = [], 0
    if frames:
        yield _seal(frames)


def _seal(frames: list[tuple[int, bytes]]) -> Packed:
    data = pack_shard(frames)
    return Packed(Shard(blake3(data).hexdigest(), len(data), frames[0][0], frames[-1][0]), data)
