"""Class-gap frames, read in NumPy. Every rule of the format is checked before a result is returned."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightsync.codec.ids import Codec
from weightsync.codec.limits import MAX_CLASSES, MAX_GAP_PARAMETER, MAX_MAGNITUDE_PARAMETER, frame_limit
from weightsync.codec.reference import lanes as lane
from weightsync.codec.reference import rice
from weightsync.codec.reference.bits import U64, BitReader, Malformed
from weightsync.codec.reference.varint import ByteReader
from weightsync.format.dtypes import DType


@dataclass
class _Class:
    """Header of one class. `mode`, and the parameters it brings, are those of the magnitudes."""

    changed: int
    k: int = 0
    inverted: bool = False
    unchanged: int = 0  # listed instead of the changed ones when inverted
    mode: int = 0
    exceptions: int = 0
    k_exceptions: int = 0
    k_magnitudes: int = 0


@dataclass
class Header:
    """Header of a frame; `bits` is what follows it."""

    first_exponent: int
    classes: list[_Class]
    bits: bytes


def read_header(dtype: DType, frame: bytes, lanes: int) -> Header:
    """The header of a frame for a chunk of `lanes`; raises `Malformed`."""
    if len(frame) > frame_limit(lanes * dtype.lane_bytes):
        raise Malformed("the frame is longer than any such chunk's")
    reader = ByteReader(frame)
    if reader.byte() != Codec.CLASS_GAP:
        raise Malformed("this is no class-gap frame")
    count = reader.byte() + 1
    if count > min(MAX_CLASSES, 1 << dtype.exponent_bits):
        raise Malformed("there are more classes than the type has exponents")
    start = reader.varint() if count > 1 else 0
    if start + count > 1 << dtype.exponent_bits:
        raise Malformed("the classes reach beyond the exponents")
    classes = [_read_class(reader, dtype.lane_bytes * 8, lanes) for _ in range(count)]
    if not 0 < sum(c.changed for c in classes) <= lanes:
        raise Malformed("the number of changes does not fit the chunk")
    return Header(start, classes, reader.rest())


def _read_class(reader: ByteReader, width: int, lanes: int) -> _Class:
    changed = reader.varint()
    if not changed:
        return _Class(0)
    if changed > lanes:
        raise Malformed("the number of changes does not fit the chunk")
    byte = reader.byte()
    found = _Class(changed, k=byte & 31, mode=byte >> 5 & 3, inverted=byte >= 128)
    if found.inverted:
        found.unchanged = reader.varint()
        if found.unchanged + changed > lanes:
            raise Malformed("the number of changes does not fit the chunk")
    if found.mode == 1:
        found.exceptions = reader.varint()
        if not 0 < found.exceptions <= changed:
            raise Malformed("the number of exceptions does not fit the class")
        found.k_exceptions = reader.byte()
    if found.mode in (1, 2):
        found.k_magnitudes = reader.byte()
    if (
        found.mode > 2
        or max(found.k, found.k_exceptions) > MAX_GAP_PARAMETER
        or found.k_magnitudes > min(width - 1, MAX_MAGNITUDE_PARAMETER)
    ):
        raise Malformed("a class has an unknown mode or a parameter out of range")
    return found


def decode_differences(dtype: DType, frame: bytes, lanes: int) -> tuple[NDArray[np.uint32], lane.Lanes]:
    """Positions and key differences of a blind frame."""
    header = read_header(dtype, frame, lanes)
    if len(header.classes) > 1:
        raise Malformed("the frame has classes: it is no blind one")
    ((ranks, differences),) = _read_bits(header, dtype, lanes)
    return ranks.astype(np.uint32), differences


def decode(dtype: DType, frame: bytes, base: lane.Lanes) -> tuple[NDArray[np.uint32], lane.Lanes]:
    """Positions, ascending, and new values."""
    header = read_header(dtype, frame, len(base))
    count = len(header.classes)
    classes = lane.classes(base, dtype, header.first_exponent, count)
    found, changes = [], []
    for c, (ranks, differences) in enumerate(_read_bits(header, dtype, len(base))):
        members = np.flatnonzero(classes == c)
        if len(ranks) and ranks[-1] >= len(members):
            raise Malformed("a position lies beyond the members of its class")
        found.append(members[ranks])
        changes.append(differences)
    positions = np.concatenate(found)
    order = np.argsort(positions)
    positions = positions[order]
    new = lane.keys(lane.keys(base[positions], dtype.order) + np.concatenate(changes)[order], dtype.order)
    return positions.astype(np.uint32), new


def _read_bits(header: Header, dtype: DType, lanes: int) -> list[tuple[NDArray[np.int64], lane.Lanes]]:
    """Ranks and differences of each class."""
    reader = BitReader(header.bits)
    result = []
    for c in header.classes:
        ranks = _read_places(reader, c, lanes)
        signs = reader.fixed(c.changed, 1)
        magnitudes = _read_magnitudes(reader, c, dtype.lane_bytes * 8, signs)
        result.append((ranks, np.where(signs == 1, np.uint64(0) - magnitudes, magnitudes).astype(lane.LANE_TYPES[dtype.lane_bytes])))
    reader.finish()
    return result


def _read_places(reader: BitReader, c: _Class, lanes: int) -> NDArray[np.int64]:
    if not c.inverted:
        return _read_ranks(reader, c.changed, c.k, lanes)
    members = c.changed + c.unchanged  # up to the last changed one
    unchanged = _read_ranks(reader, c.unchanged, c.k, members - 1)
    return np.setdiff1d(np.arange(members), unchanged, assume_unique=True)


def _read_ranks(reader: BitReader, count: int, k: int, below: int) -> NDArray[np.int64]:
    gaps = rice.get_gaps(reader, count, k).astype(np.int64)
    ranks = np.cumsum(gaps + 1) - 1
    if count and ranks[-1] >= below:
        raise Malformed("a gap leads beyond the end")
    return ranks


def _read_magnitudes(reader: BitReader, c: _Class, width: int, signs: U64) -> U64:
    if c.mode == 2:
        magnitudes = _plus(rice.get_magnitudes(reader, c.changed, c.k_magnitudes, width), 1, width)
    else:
        magnitudes = np.ones(c.changed, np.uint64)
    if c.mode == 1:
        exceptions = _read_ranks(reader, c.exceptions, c.k_exceptions, c.changed)
        magnitudes[exceptions] = _plus(rice.get_magnitudes(reader, c.exceptions, c.k_magnitudes, width), 2, width)
    if (magnitudes > np.uint64((1 << (width - 1)) - 1) + signs).any():
        raise Malformed("a difference does not fit the lane")
    return magnitudes


def _plus(values: U64, least: int, width: int) -> U64:
    """`values` + `least`; refuses what exceeds the largest magnitude of a lane, before it can wrap around."""
    if (values > np.uint64(1 << (width - 1))).any():
        raise Malformed("a difference does not fit the lane")
    return values + np.uint64(least)
