"""One part of the layout map against the live storage it names."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightsync.engine.inplace.axes import Places
from weightsync.engine.inplace.lanes import Lanes
from weightsync.engine.inplace.layout_map import Part
from weightsync.engine.inplace.permutation import Permutation
from weightsync.engine.inplace.region import Region
from weightsync.engine.inplace.widening import Widening
from weightsync.format.sums import weights

_LOST = 0x9E3779B97F4A7C15  # what a lane that is no value of the checkpoint's type adds to a sum, so that it shows


@dataclass(frozen=True)
class Site:
    """`lanes` is the storage of `part.parameter`."""

    part: Part
    lanes: Lanes
    permutation: Permutation | None
    widening: Widening | None

    def select(self, positions: NDArray[Any]) -> tuple[Any, Places]:
        """Which of the ascending `positions` of the tensor are here, and where they lie in the storage."""
        which, places = self.part.where.select(positions)
        return which, self._permuted(places)

    def bits(self, values: NDArray[Any]) -> NDArray[Any]:
        """Lanes of the tensor as the storage has them."""
        return self.widening.widen(values) if self.widening else values

    def write_all(self, values: NDArray[Any]) -> None:
        """Writes all lanes of the tensor that are here; `values` are all of the tensor."""
        if self._plain:
            self.lanes.write_all(self.part.where, values)
            return
        for source, target in self.part.where.blocks():
            self.lanes.write(self.lanes.hold_places(self._permuted(target)), self.lanes.hold(self.bits(values[source])))

    def differ_all(self, values: NDArray[Any]) -> int:
        """How many lanes here are not those of the tensor `values`."""
        if self._plain:
            return self.lanes.differ_all(self.part.where, values)
        return sum(
            int(np.count_nonzero(self.lanes.fetch(self._permuted(target)) != self.bits(values[source])))
            for source, target in self.part.where.blocks()
        )

    def region(self, name: str) -> Region:
        """Its sum, of the tensor called `name`."""
        where = self.part.where
        return Region(name, where.source, tuple((axis.size, axis.source) for axis in where.axes), where.lanes, self._total())

    @property
    def _plain(self) -> bool:
        return self.permutation is None and self.widening is None

    def _permuted(self, places: Places) -> Places:
        return self.permutation.places(places) if self.permutation else places

    def _total(self) -> int:
        if self._plain:
            return self.lanes.total(self.part.where)
        return sum(self._block_total(source, self._permuted(target)) for source, target in self.part.where.blocks()) % (1 << 64)

    def _block_total(self, source: Places, target: Places) -> int:
        if self.widening is None:
            return self.lanes.total_at(target, source)
        wide = self.lanes.fetch(target)
        narrow = self.widening.narrow(wide).astype(np.uint64)
        return int((narrow * weights(source.astype(np.uint64))).sum(dtype=np.uint64)) + _LOST * self.widening.lost(wide)
