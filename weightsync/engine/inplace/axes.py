"""Index arithmetic of the layout map: one strided range of a tensor against one of a parameter's storage."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]
MAX_COPIES = 1024  # of one lane
_BLOCK = 1 << 20  # lanes handled at once


class Axis(NamedTuple):
    """So many lanes in a row; `source` and `target` are the steps between them, in lanes."""

    size: int
    source: int
    target: int


class Strided(NamedTuple):
    """Lane `source + sum of digits x source steps` of a tensor is lane `target + sum of digits x target steps` of a storage.

    Axes come in descending order of their source steps, and no two digits lead to the same source lane.
    """

    source: int
    target: int
    axes: tuple[Axis, ...]

    @property
    def lanes(self) -> int:
        """How many."""
        return prod(axis.size for axis in self.axes)

    @property
    def contiguous(self) -> bool:
        """A run in both."""
        return not self.axes or (len(self.axes) == 1 and self.axes[0][1:] == (1, 1))

    @property
    def row(self) -> int:
        """Lanes of the longest run that is one in both: what can be handled at memory speed."""
        return self.axes[-1].size if self.axes and self.axes[-1][1:] == (1, 1) else 1

    def select(self, positions: NDArray[Any]) -> tuple[Any, Places]:
        """Which of the ascending source `positions` belong to it (a slice or indices), and the target lanes of those, int64."""
        if self.contiguous:
            first, last = np.searchsorted(positions, np.array([self.source, self.source + self.lanes], positions.dtype))
            return slice(first, last), positions[first:last].astype(np.int64) + (self.target - self.source)
        span = 1 + sum((axis.size - 1) * axis.source for axis in self.axes)
        ends = np.minimum([self.source, self.source + span], np.iinfo(positions.dtype).max).astype(positions.dtype)
        first, last = np.searchsorted(positions, ends)
        rest = positions[first:last].astype(np.int64) - self.source
        places = np.full(len(rest), self.target, np.int64)
        inside = np.ones(len(rest), np.bool_)
        for axis in self.axes:
            digit = rest // axis.source
            inside &= digit < axis.size
            rest -= digit * axis.source
            places += digit * axis.target
        inside &= rest == 0
        return first + np.flatnonzero(inside), places[inside]

    def block(self, start: int, stop: int) -> tuple[Places, Places]:
        """Source and target lanes of its lanes `start` to `stop`, counted in the order of the axes."""
        rest = np.arange(start, stop, dtype=np.int64)
        source, target = np.full(len(rest), self.source, np.int64), np.full(len(rest), self.target, np.int64)
        for axis in reversed(self.axes):
            rest, digit = np.divmod(rest, axis.size)
            source += digit * axis.source
            target += digit * axis.target
        return source, target

    def of(self, storage: NDArray[Any]) -> NDArray[Any]:
        """Its target lanes, as a view of the whole storage."""
        shape, width = [axis.size for axis in self.axes], storage.itemsize
        return np.lib.stride_tricks.as_strided(storage[self.target :], shape, [axis.target * width for axis in self.axes])

    def blocks(self) -> Iterator[tuple[Places, Places]]:
        """All of it, in blocks of bounded size."""
        for start in range(0, self.lanes, _BLOCK):
            yield self.block(start, min(start + _BLOCK, self.lanes))

    def rows(self) -> tuple[Places, Places]:
        """First source and target lane of each run of `row` lanes."""
        outer = Strided(self.source, self.target, self.axes[:-1] if self.row > 1 else self.axes)
        return outer.block(0, outer.lanes)


def strided(source: int, target: int, shape: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> list[Strided] | None:
    """The compact form; several where a source lane goes to several places. None where it is none (lanes met twice), or too many."""
    copies: list[tuple[int, int]] = [(source, target)]
    axes = []
    for size, step, stride in zip(shape, sources, targets, strict=True):
        if size == 1:
            continue
        if step == 0:
            copies = [(begin, place + stride * number) for begin, place in copies for number in range(size)]
        elif step < 0:
            copies = [(begin + step * (size - 1), place + stride * (size - 1)) for begin, place in copies]
            axes.append(Axis(size, -step, -stride))
        else:
            axes.append(Axis(size, step, stride))
        if len(copies) > MAX_COPIES:
            return None
    axes.sort(key=lambda axis: -axis.source)
    merged = tuple(_merge(axes))
    if any(axis.source * axis.size > before.source for before, axis in pairwise(merged)):
        return None
    return [Strided(begin, place, merged) for begin, place in copies]


def _merge(axes: list[Axis]) -> list[Axis]:
    found: list[Axis] = []
    for axis in axes:
        before = found[-1] if found else None
        if before and before.source == axis.size * axis.source and before.target == axis.size * axis.target:
            found[-1] = Axis(before.size * axis.size, axis.source, axis.target)
        else:
            found.append(axis)
    return found


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
