"""The container of dense and snapshot frames: the byte planes of a chunk, each compressed with zstd or as it is.

    codec id · mask of compressed planes · their lengths (varints) · the planes in order, lowest byte of the lanes first

Decompression is bounded before it starts: a plane is one zstd frame that states exactly the plane's length, has a small window, and
is followed by nothing.
"""

import threading
from collections.abc import Sequence

import numpy as np
import zstandard
from numpy.typing import NDArray

from weightsync.codec.ids import Codec
from weightsync.codec.limits import MIN_ZSTD_BYTES, ZSTD_LEVEL, ZSTD_WINDOW_BYTES
from weightsync.codec.reference.bits import Malformed
from weightsync.codec.reference.varint import ByteReader, put

Plane = bytes | memoryview
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_LONGEST_HEADER = 2 + 8 * 5  # bytes


class _Contexts(threading.local):
    """zstd contexts are expensive to make and not to be shared between threads."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)


_contexts = _Contexts()


def pack(codec: Codec, planes: NDArray[np.uint8], lane_bytes: int) -> tuple[bytes, bool]:
    """(frame, whether any plane was worth compressing). `planes` holds `lane_bytes` planes of equal length."""
    lanes = len(planes) // lane_bytes
    stored = [_smaller(memoryview(planes[p * lanes : (p + 1) * lanes])) for p in range(lane_bytes)]
    compressed = [isinstance(plane, bytes) for plane in stored]
    mask = sum(1 << p for p, is_compressed in enumerate(compressed) if is_compressed)
    lengths = b"".join(put(len(plane)) for plane, is_compressed in zip(stored, compressed, strict=True) if is_compressed)
    return b"".join((bytes([codec, mask]), lengths, *stored)), mask != 0


def unpack(codec: Codec, frame: memoryview, lanes: int, lane_bytes: int) -> NDArray[np.uint8]:
    """The planes, one after the other. Raises `Malformed`."""
    header = ByteReader(bytes(frame[:_LONGEST_HEADER]))
    if header.byte() != codec:
        raise Malformed(f"this is no {codec.name} frame")
    mask = header.byte()
    if mask >> lane_bytes or (codec is Codec.PLANES and not mask):
        raise Malformed("the mask of compressed planes is impossible")
    compressed = [bool(mask >> p & 1) for p in range(lane_bytes)]
    lengths = [header.varint() if is_compressed else lanes for is_compressed in compressed]
    return _expand(frame[header.position :], lengths, compressed, lanes)


def _expand(body: memoryview, lengths: Sequence[int], compressed: Sequence[bool], lanes: int) -> NDArray[np.uint8]:
    if sum(lengths) != len(body):
        raise Malformed("the planes do not fill the frame")
    planes = np.empty(lanes * len(lengths), np.uint8)
    at = 0
    for p, (length, is_compressed) in enumerate(zip(lengths, compressed, strict=True)):
        part = body[at : at + length]
        planes[p * lanes : (p + 1) * lanes] = np.frombuffer(_decompress(part, lanes) if is_compressed else part, np.uint8)
        at += length
    return planes


def _smaller(plane: memoryview) -> Plane:
    """zstd's output where it saves at least 1/64, else the plane itself."""
    if len(plane) < MIN_ZSTD_BYTES:
        return plane
    packed = _contexts.compressor.compress(plane)
    return packed if len(packed) <= len(plane) - len(plane) // 64 else plane


def _decompress(part: memoryview, nbytes: int) -> bytes:
    if bytes(part[:4]) != _ZSTD_MAGIC:
        raise Malformed("a plane is no zstd frame")
    try:
        found = zstandard.get_frame_parameters(part)
        if found.content_size != nbytes or found.window_size > ZSTD_WINDOW_BYTES or found.dict_id:
            raise Malformed("a zstd frame does not announce exactly one plane")
        plane = _contexts.decompressor.decompress(part, max_output_size=nbytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Malformed(f"zstd refuses a plane: {error}") from error
    if len(plane) != nbytes:
        raise Malformed("a zstd frame holds less than one plane")
    return plane
