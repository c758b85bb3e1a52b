"""An object holding frames: which chunk each belongs to, how long it is, then the frames themselves."""

import struct
from collections.abc import Sequence

from weightsync.errors import Corrupt, Unsupported
from weightsync.format import varint

_MAGIC = b"WSSH"
_HEADER = struct.Struct("<4sB3xI")  # magic, format, number of frames


def pack_shard(frames: Sequence[tuple[int, bytes]]) -> bytes:
    """Bytes of a shard from (chunk index, frame) in ascending order of chunks."""
    parts, previous = [_HEADER.pack(_MAGIC, 1, len(frames))], -1
    for chunk, frame in frames:
        parts += (varint.write(chunk - previous - 1), varint.write(len(frame)))
        previous = chunk
    return b"".join((*parts, *(frame for _, frame in frames)))


def parse_shard(data: bytes | memoryview, chunks: int) -> list[tuple[int, memoryview]]:
    """(chunk index, frame) of every frame, ascending, each index below `chunks`. Raises `Corrupt`."""
    view = memoryview(data)
    if len(view) < _HEADER.size:
        raise Corrupt("a shard is shorter than its header")
    magic, version, count = _HEADER.unpack(view[: _HEADER.size])
    if magic != _MAGIC or bytes(view[5:8]) != bytes(3):
        raise Corrupt("an object is not a shard")
    if version != 1:
        raise Unsupported(f"shard of format {version}", remedy="upgrade weightsync")
    if count > chunks:
        raise Corrupt(f"a shard claims {count} frames for {chunks} chunks")
    entries, position, chunk = [], _HEADER.size, -1
    for _ in range(count):
        gap, position = varint.read(view, position)
        size, position = varint.read(view, position)
        chunk += gap + 1
        entries.append((chunk, size))
    if chunk >= chunks:
        raise Corrupt(f"a shard has a frame for chunk {chunk} of {chunks}")
    return _cut(view, entries, position)


def _cut(view: memoryview, entries: list[tuple[int, int]], position: int) -> list[tuple[int, memoryview]]:
    if position + sum(size for _, size in entries) != len(view):
        raise Corrupt("the frames of a shard do not fill it")
    frames = []
    for chunk, size in entries:
        frames.append((chunk, view[position : position + size]))
        position += size
    return frames
