"""`Transforms` in NumPy: slow, and what the kernel is held against, function by function."""

import numpy as np
from numpy.typing import NDArray

from weightsync.codec.reference import classgap_decode, classgap_encode
from weightsync.codec.reference import lanes as lane
from weightsync.codec.transforms import Chunk, Lanes, Planes, Positions
from weightsync.format.dtypes import DType


def level() -> str:
    """See `Transforms`."""
    return "reference"


def encode_classgap(dtype: DType, old: Chunk, new: Chunk, first_lane: int, classes: int) -> tuple[bytes | None, int, int]:
    """See `Transforms`."""
    before, after = lane.view(old, dtype.lane_bytes), lane.view(new, dtype.lane_bytes)
    frame = classgap_encode.encode(dtype, before, after, classes)
    return (None, 0, 0) if frame is None else (frame, *_changes(before, after, first_lane))


def decode_classgap(dtype: DType, frame: Chunk, base: Chunk) -> tuple[Positions, Lanes]:
    """See `Transforms`."""
    return classgap_decode.decode(dtype, bytes(frame), lane.view(base, dtype.lane_bytes))


def decode_differences(dtype: DType, frame: Chunk, lanes: int) -> tuple[Positions, Lanes]:
    """See `Transforms`."""
    return classgap_decode.decode_differences(dtype, bytes(frame), lanes)


def difference_planes(dtype: DType, old: Chunk, new: Chunk, first_lane: int) -> tuple[Planes, int, int]:
    """See `Transforms`."""
    before, after = lane.view(old, dtype.lane_bytes), lane.view(new, dtype.lane_bytes)
    differences = lane.zigzag(lane.keys(after, dtype.order) - lane.keys(before, dtype.order))
    return (lane.to_nibbles(differences), *_changes(before, after, first_lane))


def apply_difference_planes(dtype: DType, planes: Planes, base: Chunk) -> Planes:
    """See `Transforms`."""
    before = lane.keys(lane.view(base, dtype.lane_bytes), dtype.order)
    differences = lane.unzigzag(lane.from_nibbles(planes, len(before), dtype.lane_bytes))
    return lane.keys(before + differences, dtype.order).view(np.uint8)


def differences_of_planes(planes: Planes, lanes: int, lane_bytes: int) -> Lanes:
    """See `Transforms`."""
    return lane.unzigzag(lane.from_nibbles(planes, lanes, lane_bytes))


def split_planes(data: Chunk, lane_bytes: int) -> Planes:
    """See `Transforms`."""
    return lane.to_planes(lane.view(data, lane_bytes))


def join_planes(planes: Planes, lane_bytes: int) -> Planes:
    """See `Transforms`."""
    return lane.from_planes(planes, lane_bytes).view(np.uint8)


def chunk_sum(data: Chunk, lane_bytes: int, first_lane: int) -> int:
    """See `Transforms`."""
    lanes = lane.view(data, lane_bytes)
    return lane.weighted_sum(lanes, _absolute(np.arange(len(lanes), dtype=np.uint64), first_lane))


def changes_sum(positions: Positions, old: Lanes, new: Lanes, first_lane: int) -> int:
    """See `Transforms`."""
    return lane.weighted_sum(new.astype(np.uint64) - old.astype(np.uint64), _absolute(positions.astype(np.uint64), first_lane))


def gather(source: Chunk, positions: Positions, lane_bytes: int) -> Lanes:
    """See `Transforms`."""
    lanes = lane.view(source, lane_bytes)
    _check_positions(positions, len(lanes))
    return lanes[positions]


def scatter(target: Chunk, positions: Positions, values: Lanes) -> None:
    """See `Transforms`."""
    lanes = lane.view(target, values.dtype.itemsize)
    _check_positions(positions, len(lanes))
    lanes[positions] = values


def _check_positions(positions: Positions, lanes: int) -> None:
    if len(positions) and int(positions.max()) >= lanes:
        raise ValueError("a position lies beyond the end")


def _absolute(positions: NDArray[np.uint64], first_lane: int) -> NDArray[np.uint64]:
    return positions + np.uint64(first_lane)


def _changes(before: lane.Lanes, after: lane.Lanes, first_lane: int) -> tuple[int, int]:
    positions = np.flatnonzero(before != after).astype(np.uint32)
    return len(positions), changes_sum(positions, before[positions], after[positions], first_lane)
