"""The container of dense and snapshot frames: planes of a chunk, each compressed with zstd or as it is.

    codec id · mask of compressed planes (varint) · their lengths (varints) · the planes in order, lowest bits of the lanes first

A snapshot has a plane for each byte of the lanes, a dense frame one for each nibble of the differences, two lanes to a byte.

Decompression is bounded before it starts: a plane is one zstd frame that states exactly the plane's length, has a small window, and
is followed by nothing.
"""

import threading
from collections.abc import Sequence

import numpy as np
import zstandard
from numpy.typing import NDArray

from weightsync.codec.ids import Codec
from weightsync.codec.limits import MIN_ZSTD_BYTES, ZSTD_WINDOW_BYTES
from weightsync.codec.reference.bits import Malformed
from weightsync.codec.reference.varint import ByteReader, put

Plane = bytes | memoryview  # compressed | as it is
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_LONGEST_HEADER = 1 + 5 + 16 * 5  # bytes


def _parameters() -> zstandard.ZstdCompressionParameters:
    """Hardly more than zstd's entropy coder: weights do not repeat, and chance matches make level 1 slower and its output larger."""
    return zstandard.ZstdCompressionParameters(
        strategy=zstandard.STRATEGY_FAST, window_log=19, chain_log=6, hash_log=6, search_log=1, min_match=7, target_length=0
    )


class _Contexts(threading.local):
    """zstd contexts are expensive to make and not to be shared between threads."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(compression_params=_parameters())
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)


_contexts = _Contexts()


def count_and_bytes(codec: Codec, lanes: int, lane_bytes: int) -> tuple[int, int]:
    """How many planes a chunk has in frames of `codec`, and the bytes of each."""
    return (2 * lane_bytes, (lanes + 1) // 2) if codec is Codec.DENSE else (lane_bytes, lanes)


def pack(codec: Codec, planes: NDArray[np.uint8], lanes: int, lane_bytes: int) -> tuple[bytes, bool]:
    """(frame, whether any plane was worth compressing)."""
    count, nbytes = count_and_bytes(codec, lanes, lane_bytes)
    stored = [_smaller(planes[p * nbytes : (p + 1) * nbytes].data) for p in range(count)]
    compressed = [isinstance(plane, bytes) for plane in stored]
    mask = sum(1 << p for p, is_compressed in enumerate(compressed) if is_compressed)
    lengths = b"".join(put(len(plane)) for plane, is_compressed in zip(stored, compressed, strict=True) if is_compressed)
    return b"".join((bytes([codec]), put(mask), lengths, *stored)), mask != 0


def unpack(codec: Codec, frame: memoryview, lanes: int, lane_bytes: int) -> NDArray[np.uint8]:
    """The planes, one after the other. Raises `Malformed`."""
    count, nbytes = count_and_bytes(codec, lanes, lane_bytes)
    header = ByteReader(bytes(frame[:_LONGEST_HEADER]))
    if header.byte() != codec:
        raise Malformed(f"this is no {codec.name} frame")
    mask = header.varint()
    if mask >> count or (codec is Codec.PLANES and not mask):
        raise Malformed("the mask of compressed planes is impossible")
    compressed = [bool(mask >> p & 1) for p in range(count)]
    lengths = [header.varint() if is_compressed else nbytes for is_compressed in compressed]
    planes = _expand(frame[header.position :], lengths, compressed, nbytes)
    if codec is Codec.DENSE and lanes % 2 and (planes.reshape(count, nbytes)[:, -1] >> 4).any():
        raise Malformed("a lane lies beyond the end")
    return planes


def _expand(body: memoryview, lengths: Sequence[int], compressed: Sequence[bool], nbytes: int) -> NDArray[np.uint8]:
    if sum(lengths) != len(body):
        raise Malformed("the planes do not fill the frame")
    planes = np.empty(nbytes * len(lengths), np.uint8)
    at = 0
    for p, (length, is_compressed) in enumerate(zip(lengths, compressed, strict=True)):
        part = body[at : at + length]
        planes[p * nbytes : (p + 1) * nbytes] = np.frombuffer(_decompress(part, nbytes) if is_compressed else part, np.uint8)
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
