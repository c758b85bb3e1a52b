"""The entropy limit of a pair: what an ideal coder that knows the old weights' exponents would need, from the pair's own statistics.

Bits = sum over exponents of n H(changed | exponent) + k H(difference | exponent, changed), with n elements and k changed ones of
that exponent; differences are those of order-preserving integer keys. The cost of sending the statistics themselves is left out,
so that no real coder reaches it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.pairs import CHUNK_LANES, Lanes, Pair
from weightsync.format.dtypes import DType, Order

MAX_BINS = 1 << 11


@dataclass(frozen=True)
class Limit:
    """`nbytes`: the limit; `blind_nbytes`: without knowing the exponent; `elements` and `changed` count lanes."""

    nbytes: float
    blind_nbytes: float
    elements: int
    changed: int

    @property
    def density(self) -> float:
        """Share of lanes that differ."""
        return self.changed / self.elements if self.elements else 0.0

    @property
    def bits_per_change(self) -> float:
        """Bits of the limit for each changed lane."""
        return 8 * self.nbytes / self.changed if self.changed else 0.0


def keys(dtype: DType, lanes: Lanes) -> Lanes:
    """Order-preserving integers, mod 2^width: negative floats are flipped."""
    if dtype.order is not Order.FLOAT:
        return lanes
    width = 8 * dtype.lane_bytes
    unsigned = lanes.dtype.type
    negative = (lanes >> unsigned(width - 1)).astype(bool)
    flipped: Lanes = np.where(negative, lanes ^ unsigned((1 << (width - 1)) - 1), lanes)
    return flipped


def exponents(dtype: DType, lanes: Lanes) -> NDArray[np.int64]:
    """The exponent field of each lane; zeros where the type has none."""
    mask = (1 << dtype.exponent_bits) - 1
    field: Lanes = (lanes >> lanes.dtype.type(dtype.exponent_shift)) & lanes.dtype.type(mask)
    return field.astype(np.int64)


def _entropy_bits(counts: NDArray[np.int64]) -> float:
    """Total bits of an ideal code for symbols with these counts."""
    some = counts[counts > 0].astype(np.float64)
    return float(some.sum() * np.log2(some.sum()) - (some * np.log2(some)).sum()) if some.size else 0.0


@dataclass
class _Tally:
    """Counts of one element type, gathered chunk by chunk."""

    dtype: DType
    elements: NDArray[np.int64]
    exponents: list[NDArray[np.int64]]
    differences: list[Lanes]

    def add(self, old: Lanes, new: Lanes) -> None:
        self.elements += np.bincount(exponents(self.dtype, old), minlength=MAX_BINS)
        where = np.flatnonzero(old != new)
        before, after = old[where], new[where]
        self.exponents.append(exponents(self.dtype, before))
        self.differences.append(keys(self.dtype, after) - keys(self.dtype, before))

    def bits(self) -> tuple[float, float]:
        """Bits given the exponent, and without it."""
        exponent, difference = np.concatenate(self.exponents), np.concatenate(self.differences)
        changed = np.bincount(exponent, minlength=MAX_BINS)
        given = sum(_entropy_bits(np.array([n - k, k])) for n, k in zip(self.elements, changed, strict=True))
        given += sum(_entropy_bits(_counts(difference[exponent == e])) for e in np.flatnonzero(changed))
        blind = _entropy_bits(np.array([self.elements.sum() - changed.sum(), changed.sum()])) + _entropy_bits(_counts(difference))
        return given, blind

    def totals(self) -> tuple[int, int]:
        """Lanes, and changed ones."""
        return int(self.elements.sum()), sum(part.size for part in self.exponents)


def _counts(values: Lanes) -> NDArray[np.int64]:
    counts: NDArray[Any] = np.unique(values, return_counts=True)[1]
    return counts.astype(np.int64)


def limit(pair: Pair) -> Limit:
    """The limit of `pair`, statistics pooled over all tensors of one element type."""
    tallies: dict[str, _Tally] = {}
    for chunk in pair.chunks(CHUNK_LANES):
        empty = _Tally(chunk.dtype, np.zeros(MAX_BINS, np.int64), [], [])
        tallies.setdefault(chunk.dtype.name, empty).add(chunk.old, chunk.new)
    bits = [tally.bits() for tally in tallies.values()]
    totals = [tally.totals() for tally in tallies.values()]
    return Limit(
        nbytes=sum(given for given, _ in bits) / 8,
        blind_nbytes=sum(blind for _, blind in bits) / 8,
        elements=sum(lanes for lanes, _ in totals),
        changed=sum(changed for _, changed in totals),
    )
