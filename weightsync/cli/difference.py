"""How two states of the weights differ: changed lanes and ULP distances, tensor by tensor.

A ULP distance counts representable values between old and new: lanes are compared through the order-preserving keys of the codec.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from weightsync.codec.reference import lanes
from weightsync.errors import Unsupported
from weightsync.format.dtypes import DType, Order
from weightsync.format.layout import Chunk, Layout, Tensor

BINS = ("1", "2", "3-4", "5-8", "9-16", "17-256", "257-65536", "more")
_EDGES = np.array([1, 2, 4, 8, 16, 256, 65536], np.uint64)


class Side(Protocol):
    """One of the two states."""

    @property
    def layout(self) -> Layout:
        """Its tensors."""
        ...

    def read(self, chunk: Chunk) -> Any:
        """The bytes of a chunk, valid until the next call."""
        ...


@dataclass
class Difference:
    """Of one tensor: lanes, changed lanes, ULP distances counted in `BINS`, and the largest distance."""

    name: str
    dtype: str
    lanes: int
    changed: int = 0
    ulps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(BINS), np.int64))
    largest: int = 0

    def to_json(self) -> dict[str, Any]:
        """As `--json` shows it."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "lanes": self.lanes,
            "changed_lanes": self.changed,
            "largest_ulp": self.largest,
            "ulps": histogram(self.ulps),
        }


def histogram(counts: NDArray[np.int64]) -> dict[str, int]:
    """Counts by the names of their bins."""
    return dict(zip(BINS, counts.tolist(), strict=True))


def total(differences: Iterable[Difference]) -> Difference:
    """All tensors together."""
    whole = Difference("total", "", 0)
    for one in differences:
        whole.lanes += one.lanes
        whole.changed += one.changed
        whole.ulps += one.ulps
        whole.largest = max(whole.largest, one.largest)
    return whole


def compare(old: Side, new: Side) -> Iterator[Difference]:
    """The tensors that both sides have with equal type and shape. Raises `Unsupported` for layouts cut into chunks differently."""
    if old.layout.chunk_lanes != new.layout.chunk_lanes:
        raise Unsupported("the two layouts have chunks of different sizes", remedy="restore both, and compare the directories")
    before = {tensor.name: number for number, tensor in enumerate(old.layout.tensors)}
    for number, tensor in enumerate(new.layout.tensors):
        match = before.get(tensor.name)
        if match is not None and _comparable(old.layout.tensors[match], tensor):
            found = Difference(tensor.name, tensor.dtype.name, tensor.lanes)
            for a, b in zip(_chunks(old.layout, match), _chunks(new.layout, number), strict=True):
                _add(found, tensor.dtype, old.read(a), new.read(b))
            yield found


def _comparable(a: Tensor, b: Tensor) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape)


def _chunks(layout: Layout, tensor: int) -> tuple[Chunk, ...]:
    return layout.chunks[layout.first_chunks[tensor] : layout.first_chunks[tensor + 1]]


def _add(found: Difference, dtype: DType, old: Any, new: Any) -> None:
    before, after = lanes.view(old, dtype.lane_bytes), lanes.view(new, dtype.lane_bytes)
    positions = np.flatnonzero(before != after)
    if not len(positions):
        return
    distances = _distances(before[positions], after[positions], dtype)
    found.changed += len(positions)
    found.ulps += np.bincount(np.searchsorted(_EDGES, distances), minlength=len(BINS))
    found.largest = max(found.largest, int(distances.max()))


def _distances(old: lanes.Lanes, new: lanes.Lanes, dtype: DType) -> NDArray[np.uint64]:
    """Absolute differences of keys; they fit 64 unsigned bits whatever the sign."""
    a, b = lanes.keys(old, dtype.order), lanes.keys(new, dtype.order)
    if dtype.order is Order.UNSIGNED:
        return (np.maximum(a, b) - np.minimum(a, b)).astype(np.uint64)
    signed = np.dtype(f"<i{dtype.lane_bytes}")
    a, b = a.view(signed).astype(np.int64), b.view(signed).astype(np.int64)
    return np.maximum(a, b).view(np.uint64) - np.minimum(a, b).view(np.uint64)
