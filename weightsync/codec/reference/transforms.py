"""The operations of the codec as the public API calls them: the NumPy twin of the kernel module `_kernel`, function by function."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightsync.codec.reference import classgap_decode, classgap_encode
from weightsync.codec.reference import lanes as lane
from weightsync.format.dtypes import DType


def level() -> str:
    return "reference"


def encode_classgap(dtype: DType, old: Any, new: Any, first_lane: int, classes: int) -> tuple[bytes | None, int, int]:
    """(frame, changed lanes, sum of the changes). The frame is empty where nothing changed; None asks for the dense form, and then
    the other two are 0."""
    before, after = lane.view(old, dtype.lane_bytes), lane.view(new, dtype.lane_bytes)
    frame = classgap_encode.encode(dtype, before, after, classes)
    return (None, 0, 0) if frame is None else (frame, *_changes(before, after, first_lane))


def decode_classgap(dtype: DType, frame: Any, base: Any) -> tuple[NDArray[np.uint32], NDArray[Any]]:
    return classgap_decode.decode(dtype, bytes(frame), lane.view(base, dtype.lane_bytes))


def decode_differences(dtype: DType, frame: Any, lanes: int) -> tuple[NDArray[np.uint32], NDArray[Any]]:
    return classgap_decode.decode_differences(dtype, bytes(frame), lanes)


def difference_planes(dtype: DType, old: Any, new: Any, first_lane: int) -> tuple[NDArray[np.uint8], int, int]:
    """(nibble planes of the zigzag key differences, changed lanes, sum of the changes)."""
    before, after = lane.view(old, dtype.lane_bytes), lane.view(new, dtype.lane_bytes)
    differences = lane.zigzag(lane.keys(after, dtype.order) - lane.keys(before, dtype.order))
    return (lane.to_nibbles(differences), *_changes(before, after, first_lane))


def apply_difference_planes(dtype: DType, planes: NDArray[np.uint8], base: Any) -> NDArray[np.uint8]:
    """The new chunk's bytes."""
    before = lane.keys(lane.view(base, dtype.lane_bytes), dtype.order)
    return lane.keys(before + lane.unzigzag(lane.from_nibbles(planes, len(before), dtype.lane_bytes)), dtype.order).view(np.uint8)


def differences_of_planes(planes: NDArray[np.uint8], lanes: int, lane_bytes: int) -> NDArray[Any]:
    """The key differences that planes hold, one for every lane."""
    return lane.unzigzag(lane.from_nibbles(planes, lanes, lane_bytes))


def split_planes(data: Any, lane_bytes: int) -> NDArray[np.uint8]:
    return lane.to_planes(lane.view(data, lane_bytes))


def join_planes(planes: NDArray[np.uint8], lane_bytes: int) -> NDArray[np.uint8]:
    return lane.from_planes(planes, lane_bytes).view(np.uint8)


def chunk_sum(data: Any, lane_bytes: int, first_lane: int) -> int:
    lanes = lane.view(data, lane_bytes)
    return lane.weighted_sum(lanes, _absolute(np.arange(len(lanes), dtype=np.uint64), first_lane))


def changes_sum(positions: NDArray[np.uint32], old: NDArray[Any], new: NDArray[Any], first_lane: int) -> int:
    """What the changes of lanes at `positions` from `old` to `new` add to the sum."""
    return lane.weighted_sum(new.astype(np.uint64) - old.astype(np.uint64), _absolute(positions.astype(np.uint64), first_lane))


def gather(source: Any, positions: NDArray[np.uint32], lane_bytes: int) -> NDArray[Any]:
    lanes = lane.view(source, lane_bytes)
    _check_positions(positions, len(lanes))
    return lanes[positions]


def scatter(target: Any, positions: NDArray[np.uint32], values: NDArray[Any]) -> None:
    lanes = lane.view(target, values.dtype.itemsize)
    _check_positions(positions, len(lanes))
    lanes[positions] = values


def _check_positions(positions: NDArray[np.uint32], lanes: int) -> None:
    if len(positions) and int(positions.max()) >= lanes:
        raise ValueError("a position lies beyond the end")


def _absolute(positions: NDArray[np.uint64], first_lane: int) -> NDArray[np.uint64]:
    return positions + np.uint64(first_lane)


def _changes(before: lane.Lanes, after: lane.Lanes, first_lane: int) -> tuple[int, int]:
    positions = np.flatnonzero(before != after).astype(np.uint32)
    return len(positions), changes_sum(positions, before[positions], after[positions], first_lane)
