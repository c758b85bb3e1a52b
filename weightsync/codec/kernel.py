"""The compiled kernel behind the interface of `Transforms`: element types become the few numbers that it takes."""

from weightsync.codec import _kernel
from weightsync.codec.transforms import Chunk, Lanes, Planes, Positions
from weightsync.errors import Unsupported
from weightsync.format.dtypes import DTYPES, DType, Order

_ORDERS = {Order.UNSIGNED: 0, Order.SIGNED: 0, Order.FLOAT: 1}

level = _kernel.level
split_planes = _kernel.split_planes
join_planes = _kernel.join_planes
differences_of_planes = _kernel.differences_of_planes
chunk_sum = _kernel.chunk_sum
changes_sum = _kernel.changes_sum
gather = _kernel.gather
scatter = _kernel.scatter


def _spec(dtype: DType) -> int:
    return dtype.lane_bytes | _ORDERS[dtype.order] << 8 | dtype.exponent_shift << 16 | dtype.exponent_bits << 24


_SPECS = {name: _spec(dtype) for name, dtype in DTYPES.items()}


def use_level(name: str) -> None:
    """Computes at the level `name` from now on, in the whole process. Raises `Unsupported` where the processor cannot."""
    if not _kernel.use_level(name):
        raise Unsupported(f"this processor or build has no kernel level {name!r}", remedy="use auto")


def encode_classgap(dtype: DType, old: Chunk, new: Chunk, first_lane: int, classes: int) -> tuple[bytes | None, int, int]:
    """See `Transforms`."""
    return _kernel.encode_classgap(_SPECS[dtype.name], old, new, first_lane, classes)


def decode_classgap(dtype: DType, frame: Chunk, base: Chunk) -> tuple[Positions, Lanes]:
    """See `Transforms`."""
    return _kernel.decode_classgap(_SPECS[dtype.name], frame, base)


def decode_differences(dtype: DType, frame: Chunk, lanes: int) -> tuple[Positions, Lanes]:
    """See `Transforms`."""
    return _kernel.decode_differences(_SPECS[dtype.name], frame, lanes)


def difference_planes(dtype: DType, old: Chunk, new: Chunk, first_lane: int) -> tuple[Planes, int, int]:
    """See `Transforms`."""
    return _kernel.difference_planes(_SPECS[dtype.name], old, new, first_lane)


def apply_difference_planes(dtype: DType, planes: Planes, base: Chunk) -> Planes:
    """See `Transforms`."""
    return _kernel.apply_difference_planes(_SPECS[dtype.name], planes, base)
