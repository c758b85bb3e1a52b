"""A repacking after loading that only moves lanes, learned by pushing patterns through it that say where they come from."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weightsync.engine.inplace.axes import Axis, Places, Strided

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, eq=False)
class Permutation:
    """Lane i of a storage of `lanes` lies at `places(i)`. Strided where it can be written so, else a table (8 bytes a lane)."""

    lanes: int
    where: Strided | None
    table: Places | None = None

    def places(self, lanes: NDArray[np.int64]) -> Places:
        """Where lanes lie, int64."""
        if self.table is not None:
            return self.table[lanes]
        assert self.where is not None  # noqa: S101 - one of the two is there
        rest, places = lanes, np.full(len(lanes), self.where.target, np.int64)
        for axis in self.where.axes:
            digit, rest = np.divmod(rest, axis.source)
            places += digit * axis.target
        return places


def learn_permutation(shape: tuple[int, ...], dtype: torch.dtype, repack: Callable[[Any], Any]) -> Permutation | None:
    """Where `repack` moves the lanes of a contiguous tensor; None where it computes, drops or invents any.

    It is given tensors of `shape` and `dtype` with all kinds of bits, and gives one of as many bytes; it may change what it is given.
    """
    count, width = prod(shape), torch.empty((), dtype=dtype).element_size()
    index = torch.arange(count)
    came_from = torch.zeros_like(index)
    bits = 8 * min(width, 4)
    for shift in range(0, max(1, (count - 1).bit_length()), bits):
        pattern = (index >> shift) & ((1 << bits) - 1)
        pushed = repack(pattern.to(_wide(width)).to(_BITS[width]).view(dtype).reshape(shape).contiguous())
        if not isinstance(pushed, torch.Tensor) or pushed.numel() != count or pushed.element_size() != width:
            return None
        found = pushed.detach().cpu().contiguous().view(_BITS[width]).reshape(-1).long() & ((1 << bits) - 1)
        came_from |= found << shift
    if count and not torch.equal(came_from.sort()[0], index):
        return None
    places = torch.empty_like(index)
    places[came_from] = index
    return of_table(places.numpy())


def of_table(places: Places) -> Permutation:
    """The compact form of a table that holds each lane once."""
    where = _factor(places)
    return Permutation(len(places), where, None if where else places)


def _wide(width: int) -> torch.dtype:
    return torch.int64 if width > 4 else torch.int32


def _factor(places: Places) -> Strided | None:
    """Axes whose digits, row by row, count the lanes; None where there are no such."""
    if not len(places):
        return Strided(0, 0, ())
    axes: list[Axis] = []
    rest, step = places - places[0], 1
    while len(rest) > 1:
        stride = int(rest[1])
        breaks = np.flatnonzero(np.diff(rest) != stride)
        size = int(breaks[0]) + 1 if len(breaks) else len(rest)
        if len(rest) % size or size < 2:
            return None
        rows = rest.reshape(-1, size)
        if not np.array_equal(rows, rows[:, :1] + np.arange(size) * stride):
            return None
        axes.append(Axis(size, step, stride))
        rest, step = np.ascontiguousarray(rows[:, 0]), step * size
    return Strided(0, int(places[0]), tuple(reversed(axes)))
