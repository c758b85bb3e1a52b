"""Class-gap frames, written in NumPy. `proto/FORMAT.md` describes the bytes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightsync.codec.ids import Codec
from weightsync.codec.reference import lanes as lane
from weightsync.codec.reference import policy, rice, varint
from weightsync.codec.reference.bits import U64, Bits, fixed, pack
from weightsync.format.dtypes import DType


@dataclass
class _Part:
    """One class in the frame: its header, its bits, and the bits that the encoder expects them to take."""

    header: bytes
    bits: list[Bits]
    expected_bits: int


def encode(dtype: DType, old: lane.Lanes, new: lane.Lanes, wanted_classes: int) -> bytes | None:
    """The frame; empty where nothing changed, None where the dense form should be taken."""
    positions = np.flatnonzero(old != new)
    if not len(positions):
        return b""
    if len(positions) > policy.change_limit(len(old), dtype, wanted_classes):
        return None
    count = policy.class_count(len(positions), len(old), dtype, wanted_classes)
    start = policy.first_exponent(lane.exponents(old[positions], dtype), dtype.exponent_bits, count)
    differences = lane.keys(new[positions], dtype.order) - lane.keys(old[positions], dtype.order)
    classes = lane.classes(old, dtype, start, count)
    changed_classes = classes[positions]
    parts = [_part(_ranks(classes, positions, c), differences[changed_classes == c]) for c in range(count)]
    if policy.too_large(sum(8 * len(p.header) + p.expected_bits for p in parts), old.nbytes):
        return None
    head = bytes([Codec.CLASS_GAP, count - 1]) + (varint.put(start) if count > 1 else b"")
    frame = head + b"".join(p.header for p in parts) + pack([b for p in parts for b in p.bits])
    return frame if len(frame) <= old.nbytes else None


def _ranks(classes: NDArray[np.int64], positions: NDArray[np.int64], c: int) -> NDArray[np.int64]:
    """Places of the changed members of class `c` among all its members."""
    members = np.flatnonzero(classes == c)
    return np.flatnonzero(np.isin(members, positions, assume_unique=True))


def _part(ranks: NDArray[np.int64], differences: lane.Lanes) -> _Part:
    if not len(ranks):
        return _Part(b"\0", [], 0)
    width = differences.dtype.itemsize * 8
    signs = (differences >> differences.dtype.type(width - 1)).astype(np.uint64)
    magnitudes = np.where(signs == 1, differences.dtype.type(0) - differences, differences).astype(np.uint64)
    places = _places(ranks)
    mode, fields, bits, expected = _magnitudes(magnitudes, width)
    header = varint.put(len(ranks)) + bytes([places.k | mode << 5 | places.inverted << 7]) + places.field + fields
    return _Part(header, [*rice.put_gaps(places.gaps, places.k), fixed(signs, 1), *bits], places.bits + len(ranks) + expected)


@dataclass
class _Places:
    """Where members of a class changed: `gaps` of those that did, or, inverted, of those that did not."""

    k: int
    gaps: U64
    bits: int
    inverted: bool = False
    field: bytes = b""  # of the header: how many gaps there are, where that is not the number of changes


def _places(ranks: NDArray[np.int64]) -> _Places:
    direct = _gaps(ranks)
    unchanged = np.setdiff1d(np.arange(ranks[-1]), ranks, assume_unique=True)
    if len(unchanged) >= len(ranks):
        return direct
    inverted = _gaps(unchanged)
    inverted.inverted, inverted.field = True, varint.put(len(unchanged))
    return inverted if inverted.bits + 8 * len(inverted.field) < direct.bits else direct


def _gaps(ranks: NDArray[np.int64]) -> _Places:
    gaps = np.diff(ranks, prepend=-1) - 1
    total = int(ranks[-1]) + 1 - len(ranks) if len(ranks) else 0
    k = rice.gap_parameter(total, len(ranks))
    return _Places(k, gaps.astype(np.uint64), rice.gap_bits(total, len(ranks), k))


def _magnitudes(magnitudes: U64, width: int) -> tuple[int, bytes, list[Bits], int]:
    """(mode, header fields, bits, expected bits): 0 all are one; 1 the exceptions are listed; 2 each is coded."""
    exceptions = np.flatnonzero(magnitudes > 1)
    if not len(exceptions):
        return 0, b"", [], 0
    places = _gaps(exceptions)
    excess = magnitudes[exceptions] - np.uint64(2)
    k_excess, excess_bits = rice.magnitude_parameter(rice.length_histogram(excess), width)
    listed = places.bits + excess_bits
    k_direct, direct = rice.magnitude_parameter(rice.length_histogram(magnitudes - np.uint64(1)), width)
    if listed + 16 <= direct:
        fields = varint.put(len(exceptions)) + bytes([places.k, k_excess])
        return 1, fields, [*rice.put_gaps(places.gaps, places.k), *rice.put_magnitudes(excess, k_excess, width)], listed
    return 2, bytes([k_direct]), rice.put_magnitudes(magnitudes - np.uint64(1), k_direct, width), direct
