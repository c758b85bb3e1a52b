"""A long training run in memory: every version differs from the one before as a step of reinforcement learning makes it differ.

Cheaper than `generate` by two orders: which lanes change is drawn by exponent, P(changed | e) = 0.228 lr / ulp(e), without fp32 masters.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.generate import BF16, ULP_EXPONENT, shapes, weights
from weightsync.codec import encode_snapshot
from weightsync.format.files import FileTable
from weightsync.format.layout import Chunk, Tensor, make_layout
from weightsync.format.refs import Ref
from weightsync.publisher.source import Chunking

UPDATE = 0.228  # mean size of an AdamW step in units of the learning rate
ONE_ULP = 0.9  # of the changes


class Model:
    """A `Source` whose weights change in place by `step`. All tensors lie one after the other in `lanes`, uint16."""

    def __init__(self, nbytes: int, *, seed: int = 0, learning_rate: float = 1e-6) -> None:
        table = shapes(nbytes)
        self._rng = np.random.default_rng(seed)
        self.layout = make_layout([Tensor(name, BF16, shape) for name, shape in table.items()])
        self.lanes = np.concatenate([weights(tensor.shape, self._rng) for tensor in self.layout.tensors])
        self._starts = np.cumsum([0, *(tensor.lanes for tensor in self.layout.tensors)])
        exponents = ((self.lanes >> 7) & 0xFF).astype(np.uint8)
        self._order = np.argsort(exponents, kind="stable").astype(np.uint32)
        counts = np.bincount(exponents, minlength=256)
        self._classes = np.concatenate([[0], np.cumsum(counts)])
        ulps = np.exp2(np.arange(256, dtype=np.float64) - ULP_EXPONENT)
        self._rates = np.minimum(UPDATE * learning_rate / ulps, 0.5)

    files = FileTable()
    objects: Sequence[tuple[Ref, bytes]] = ()
    notes: Sequence[str] = ()

    def step(self) -> None:
        """One optimiser step."""
        for exponent in np.flatnonzero(np.diff(self._classes)):
            first, last = int(self._classes[exponent]), int(self._classes[exponent + 1])
            count = int(self._rng.binomial(last - first, self._rates[exponent]))
            picked = self._order[self._rng.integers(first, last, count)]
            size = np.where(self._rng.random(count) < ONE_ULP, 1, self._rng.integers(2, 4, count))
            self.lanes[picked] += (size * self._rng.choice((-1, 1), count)).astype(np.int16).view(np.uint16)

    def chunk(self, chunk: Chunk) -> NDArray[np.uint16]:
        """The lanes of one chunk."""
        start = int(self._starts[chunk.tensor]) + chunk.start_lane
        return self.lanes[start : start + chunk.lanes]

    def snapshot_bytes(self) -> int:
        """Bytes of the frames of a snapshot of what the weights are now."""
        return sum(len(encode_snapshot(BF16, self.chunk(chunk), first_lane=chunk.start_lane).frame) for chunk in self.layout.chunks)

    @property
    def chunking(self) -> Chunking:
        """How it is cut."""
        return Chunking.of(self.layout)

    def read(self, chunk: Chunk, into: memoryview) -> memoryview:
        """See `Source.read`."""
        del into
        return self.chunk(chunk).view(np.uint8).data

    def check_unchanged(self) -> None:
        """See `Source.check_unchanged`."""

    def close(self) -> None:
        """See `Source.close`."""
