"""A large model whose steps cost little to make: one block of weights over and over, changes spread evenly."""

from typing import Any

import numpy as np

from benchmarks.generate import BF16, weights
from benchmarks.long_run import Model
from weightsync.format.layout import Tensor, make_layout

BLOCK_LANES = 1 << 24
WIDTH = 4096


class LargeModel(Model):
    """As `Model`; `share` of the lanes change by one ULP in each step."""

    def __init__(self, nbytes: int, *, seed: int = 0, share: float = 0.0114) -> None:
        self._rng = np.random.default_rng(seed)
        self._share = share
        block = weights((BLOCK_LANES // WIDTH, WIDTH), self._rng)
        count = max(1, round(nbytes / block.nbytes))
        self.layout = make_layout([Tensor(f"layers.{n:03}.weight", BF16, (BLOCK_LANES // WIDTH, WIDTH)) for n in range(count)])
        self.lanes = np.tile(block, count)
        self._starts: Any = np.arange(count + 1) * BLOCK_LANES

    def step(self) -> None:
        """Some lanes go up or down."""
        count = int(self.lanes.size * self._share)
        for start in range(0, self.lanes.size, BLOCK_LANES):
            picked = start + self._rng.integers(0, BLOCK_LANES, count * BLOCK_LANES // self.lanes.size)
            self.lanes[picked] ^= np.uint16(1)
