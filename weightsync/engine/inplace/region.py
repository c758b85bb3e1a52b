"""Sums of live parameters by region of a tensor, and how those of many ranks add up to sums of tensors."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from weightsync.engine.inplace.layout_map import Described
from weightsync.errors import Corrupt
from weightsync.format.dtypes import dtype_named


class Region(NamedTuple):
    """The sum, mod 2^64, of some lanes of a tensor: those from `first` on in (size, step) `axes`."""

    tensor: str
    first: int
    axes: tuple[tuple[int, int], ...]
    lanes: int
    total: int


def add_up(regions: Iterable[Region], tensors: Mapping[str, Described]) -> dict[str, int]:
    """The sums of all tensors whose lanes are all there; what several hold (norms on each rank, tied copies) counts once.

    Raises `Corrupt` where two that hold the same lanes differ.
    """
    seen: dict[tuple[str, int, tuple[tuple[int, int], ...]], Region] = {}
    for region in regions:
        first = seen.setdefault(region[:3], region)
        if first.total != region.total:
            raise Corrupt(f"two copies of {region.tensor!r} differ", remedy="reload the engine")
    totals: dict[str, int] = {}
    lanes: dict[str, int] = {}
    for region in seen.values():
        totals[region.tensor] = (totals.get(region.tensor, 0) + region.total) % (1 << 64)
        lanes[region.tensor] = lanes.get(region.tensor, 0) + region.lanes
    empty = {name: 0 for name, (dtype, shape) in tensors.items() if dtype_named(dtype).lanes(shape) == 0}
    whole = {name: total for name, total in totals.items() if lanes[name] == dtype_named(tensors[name].dtype).lanes(tensors[name].shape)}
    return empty | whole
