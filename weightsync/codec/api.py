"""What the rest of weightsync calls: chunks to frames, frames to changes, and the write.

    encoded = encode_delta(dtype, old, new, first_lane=chunk.start_lane)        # bytes for the store, and what the tensor's sum gains
    found = decode(dtype, encoded.frame, old, lanes)                            # checks everything, writes nothing
    if isinstance(found, Changes): scatter(target, found.positions, found.values)
    else: target[:] = found

A chunk is a contiguous buffer of at most 2^24 lanes. Everything here may be called from many threads; the work runs without the GIL.
Wrong arguments raise `Invalid`, frames that break a rule `Corrupt`. A frame that decodes is not thereby the right one: its digest and
the leaf of the result prove that.
"""

from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weightsync.codec import planes
from weightsync.codec.dispatch import transforms
from weightsync.codec.ids import Codec
from weightsync.codec.limits import MAX_CLASSES, MAX_LANES
from weightsync.errors import Corrupt, Invalid
from weightsync.format.dtypes import DType

Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[Any]


class Encoded(NamedTuple):
    """A chunk's frame, `b""` where nothing changed; how many lanes changed; what the sum of the tensor gains, mod 2^64."""

    frame: bytes
    changed: int
    sum_delta: int


class Changes(NamedTuple):
    """Changed lanes of a chunk: ascending positions, and the new bit patterns as unsigned integers of the lanes' width."""

    positions: NDArray[np.uint32]
    values: NDArray[Any]


def encode_delta(dtype: DType, old: Buffer, new: Buffer, *, first_lane: int = 0, classes: int | None = None) -> Encoded:
    """Codes a chunk against its older state. `first_lane` is the chunk's place in its tensor.

    `classes` 1 makes a blind frame (`decode_differences` reads it without a base); None leaves the choice to the number of changes,
    and keeps the time below that of a snapshot with its upload; 2 to 16 asks for the smallest frame, whatever the time.
    """
    lanes = _lanes(dtype, old)
    if lanes != _lanes(dtype, new):
        raise Invalid(f"the old chunk has {lanes} lanes, the new one {_lanes(dtype, new)}")
    if classes is not None and not 1 <= classes <= MAX_CLASSES:
        raise Invalid(f"{classes} classes", remedy=f"use 1 to {MAX_CLASSES}")
    frame, changed, sum_delta = transforms().encode_classgap(dtype, old, new, first_lane, classes or 0)
    if frame is not None:
        return Encoded(frame, changed, sum_delta)
    differences, changed, sum_delta = transforms().difference_planes(dtype, old, new, first_lane)
    frame, pays = planes.pack(Codec.DENSE, differences, lanes, dtype.lane_bytes)
    return Encoded(frame if pays or classes == 1 else _raw(new), changed, sum_delta)


def encode_snapshot(dtype: DType, new: Buffer, *, first_lane: int = 0) -> Encoded:
    """Codes a chunk on its own. `changed` is its number of lanes, `sum_delta` its whole sum."""
    lanes = _lanes(dtype, new)
    frame, pays = planes.pack(Codec.PLANES, transforms().split_planes(new, dtype.lane_bytes), lanes, dtype.lane_bytes)
    return Encoded(frame if pays else _raw(new), lanes, chunk_sum(dtype, new, first_lane))


def decode(dtype: DType, frame: Buffer, base: Buffer | None, lanes: int) -> Changes | NDArray[np.uint8]:
    """The changes, or all bytes of the new chunk. `base` may be None for raw and snapshot frames, and is only read.

    Raises `Corrupt` before anything is returned when the frame breaks any rule of the format.
    """
    _check_lanes(dtype, lanes)
    if base is not None and _lanes(dtype, base) != lanes:
        raise Invalid(f"the base has {_lanes(dtype, base)} lanes, the chunk {lanes}")
    data = _bytes(frame)
    codec = data[0] if len(data) else -1
    try:
        if codec == Codec.CLASS_GAP:
            return Changes(*transforms().decode_classgap(dtype, data, _needed(base)))
        if codec == Codec.RAW:
            return _decode_raw(data, lanes * dtype.lane_bytes)
        if codec == Codec.PLANES:
            return transforms().join_planes(planes.unpack(Codec.PLANES, data, lanes, dtype.lane_bytes), dtype.lane_bytes)
        if codec == Codec.DENSE:
            found = planes.unpack(Codec.DENSE, data, lanes, dtype.lane_bytes)
            return transforms().apply_difference_planes(dtype, found, _needed(base))
    except ValueError as error:
        _refuse(dtype, codec, error)
    raise Corrupt(f"no codec has the id {codec}", remedy="upgrade, or fetch the object again")


def decode_differences(dtype: DType, frame: Buffer, lanes: int) -> tuple[NDArray[np.uint32], NDArray[Any]]:
    """Positions and key differences (mod 2^width, never 0) of a frame made with `classes` 1; needs no base."""
    _check_lanes(dtype, lanes)
    data = _bytes(frame)
    codec = data[0] if len(data) else -1
    try:
        if codec == Codec.CLASS_GAP:
            return transforms().decode_differences(dtype, data, lanes)
        if codec == Codec.DENSE:
            found = planes.unpack(Codec.DENSE, data, lanes, dtype.lane_bytes)
            return _nonzero(transforms().differences_of_planes(found, lanes, dtype.lane_bytes))
    except ValueError as error:
        _refuse(dtype, codec, error)
    raise Corrupt(f"a frame of codec {codec} is no blind one")


def gather(source: Buffer, positions: NDArray[np.uint32], lane_bytes: int) -> NDArray[Any]:
    """The lanes at `positions`. Raises `Invalid` when one lies beyond the end."""
    try:
        return transforms().gather(source, positions, lane_bytes)
    except ValueError as error:
        raise Invalid(f"cannot gather: {error}") from error


def scatter(target: Buffer, positions: NDArray[np.uint32], values: NDArray[Any]) -> None:
    """Writes `values` to the lanes at `positions`. Raises `Invalid`, having written nothing, when one lies beyond the end."""
    try:
        transforms().scatter(target, positions, values)
    except ValueError as error:
        raise Invalid(f"cannot scatter: {error}") from error


def chunk_sum(dtype: DType, data: Buffer, first_lane: int = 0) -> int:
    """The part of a tensor's sum that a chunk holds, mod 2^64."""
    return transforms().chunk_sum(data, dtype.lane_bytes, first_lane)


def changes_sum(positions: NDArray[np.uint32], old: NDArray[Any], new: NDArray[Any], first_lane: int = 0) -> int:
    """What the sum gains, mod 2^64, when the lanes at `positions` go from `old` to `new`."""
    return transforms().changes_sum(positions, old, new, first_lane)


def dispatch_level() -> str:
    """avx512, avx2, portable or reference."""
    return transforms().level()


def _lanes(dtype: DType, data: Any) -> int:
    view = memoryview(data)
    if not view.c_contiguous:
        raise Invalid("a chunk is not contiguous in memory", remedy="copy it first")
    nbytes = view.nbytes
    if nbytes % dtype.lane_bytes:
        raise Invalid(f"{nbytes} bytes are no whole number of {dtype.name} lanes")
    _check_lanes(dtype, nbytes // dtype.lane_bytes)
    return nbytes // dtype.lane_bytes


def _check_lanes(dtype: DType, lanes: int) -> None:
    if not 0 <= lanes <= MAX_LANES:
        raise Invalid(f"a chunk of {lanes} {dtype.name} lanes", remedy=f"cut it into chunks of at most {MAX_LANES}")


def _needed(base: Buffer | None) -> Buffer:
    if base is None:
        raise Invalid("this frame is a difference and needs the chunk it starts from")
    return base


def _bytes(frame: Any) -> memoryview:
    view = memoryview(frame)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _raw(new: Any) -> bytes:
    return b"".join((bytes([Codec.RAW]), memoryview(new).cast("B")))


def _decode_raw(data: memoryview, nbytes: int) -> NDArray[np.uint8]:
    if len(data) != nbytes + 1:
        raise ValueError(f"it holds {len(data) - 1} bytes instead of {nbytes}")
    return np.frombuffer(data, np.uint8, offset=1)


def _nonzero(differences: NDArray[Any]) -> tuple[NDArray[np.uint32], NDArray[Any]]:
    positions = np.flatnonzero(differences).astype(np.uint32)
    return positions, differences[positions]


def _refuse(dtype: DType, codec: int, error: ValueError) -> NoReturn:
    raise Corrupt(f"malformed {Codec(codec).name} frame of {dtype.name}: {error}", remedy="fetch the object again") from error
