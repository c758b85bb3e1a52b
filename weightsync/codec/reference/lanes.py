"""Order-preserving keys, classes, byte planes and sums of lanes, in NumPy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightsync.format.dtypes import DType, Order

Lanes = NDArray[Any]  # little-endian unsigned integers of 1, 2, 4 or 8 bytes

LANE_TYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}


def view(data: Any, lane_bytes: int) -> Lanes:
    """`data`, any contiguous buffer, as lanes, without a copy."""
    return np.frombuffer(data, LANE_TYPES[lane_bytes])


def keys(lanes: Lanes, order: Order) -> Lanes:
    """Integer keys, as two's complement, that order lanes as their values are ordered; its own inverse."""
    if order is not Order.FLOAT:
        return lanes
    width = lanes.dtype.itemsize * 8
    negative = (lanes >> lanes.dtype.type(width - 1)).astype(bool)
    return np.where(negative, lanes ^ lanes.dtype.type((1 << (width - 1)) - 1), lanes)


def exponents(lanes: Lanes, dtype: DType) -> NDArray[np.int64]:
    """The exponent bits of each lane."""
    mask = lanes.dtype.type((1 << dtype.exponent_bits) - 1)
    return np.asarray((lanes >> lanes.dtype.type(dtype.exponent_shift)) & mask, np.int64)


def classes(lanes: Lanes, dtype: DType, first_exponent: int, count: int) -> NDArray[np.int64]:
    """Class of each lane: its exponent less `first_exponent`, clamped to 0 .. count - 1; all 0 where count is 1."""
    if count == 1:
        return np.zeros(len(lanes), np.int64)
    return np.clip(exponents(lanes, dtype) - first_exponent, 0, count - 1)


def weights(positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """w(i) of the sums for each lane index i."""
    z = (positions + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z ^= z >> np.uint64(32)
    z *= np.uint64(0xD6E8FEB86659FD93)
    z ^= z >> np.uint64(32)
    return np.asarray(z | np.uint64(1))


def weighted_sum(values: Lanes, positions: NDArray[np.uint64]) -> int:
    """Sum of value times weight, mod 2^64."""
    return int((values.astype(np.uint64) * weights(positions)).sum(dtype=np.uint64))


def zigzag(differences: Lanes) -> Lanes:
    """Small differences of either sign as small unsigned numbers."""
    width = differences.dtype.itemsize * 8
    sign = differences >> differences.dtype.type(width - 1)
    return np.asarray((differences << differences.dtype.type(1)) ^ (differences.dtype.type(0) - sign))


def unzigzag(values: Lanes) -> Lanes:
    """Undoes `zigzag`."""
    one = values.dtype.type(1)
    return np.asarray((values >> one) ^ (values.dtype.type(0) - (values & one)))


def to_planes(lanes: Lanes) -> NDArray[np.uint8]:
    """Byte 0 of every lane, then byte 1 of every lane, and so on."""
    return np.ascontiguousarray(lanes.view(np.uint8).reshape(len(lanes), lanes.dtype.itemsize).T).reshape(-1)


def from_planes(planes: NDArray[np.uint8], lane_bytes: int) -> Lanes:
    """Undoes `to_planes`."""
    together = np.ascontiguousarray(planes.reshape(lane_bytes, -1).T)
    return together.reshape(-1).view(LANE_TYPES[lane_bytes])


def to_nibbles(lanes: Lanes) -> NDArray[np.uint8]:
    """Nibble 0 of every lane, two lanes to a byte, the first in the low half; then nibble 1, and so on."""
    even = np.concatenate((lanes, np.zeros(len(lanes) % 2, lanes.dtype)))
    planes = to_planes(even).reshape(lanes.dtype.itemsize, -1)
    nibbles = np.stack((planes & 15, planes >> 4), axis=1)
    return np.asarray(nibbles[..., 0::2] | nibbles[..., 1::2] << 4).reshape(-1)


def from_nibbles(packed: NDArray[np.uint8], lanes: int, lane_bytes: int) -> Lanes:
    """Undoes `to_nibbles`."""
    pairs = packed.reshape(lane_bytes, 2, (lanes + 1) // 2)
    nibbles = np.stack((pairs & 15, pairs >> 4), axis=3).reshape(lane_bytes, 2, -1)
    return from_planes((nibbles[:, 0] | nibbles[:, 1] << 4).reshape(-1), lane_bytes)[:lanes]
