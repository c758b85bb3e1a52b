"""How far the learning policy stands from the one that drew the tokens, by region and version.

With d = log-probability now - log-probability when drawn, over the drawn tokens: k1 = mean(-d) and k3 = mean(e^d - 1 - d) estimate the
Kullback-Leibler divergence from the drawing policy (Schulman 2020, "Approximating KL divergence"); k3 is never negative and less noisy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LOW, HIGH = 0.5, 2.0  # a ratio of probabilities outside is "out of band"


@dataclass(frozen=True)
class Mismatch:
    """Of `tokens` drawn tokens; all in nats but `out`, the share whose probability has changed by more than a factor of two."""

    tokens: int
    k1: float
    k3: float
    largest: float
    out: float


def mismatch(new: NDArray[np.float32], old: NDArray[np.float32]) -> Mismatch:
    """Of log-probabilities of the same drawn tokens, each (tokens,)."""
    if not len(new):
        return Mismatch(0, 0.0, 0.0, 0.0, 0.0)
    moved = new.astype(np.float64) - old.astype(np.float64)
    ratio = np.exp(np.minimum(moved, 80.0))
    out = (ratio < LOW) | (ratio > HIGH)
    # expm1 keeps what 1 would swallow: near zero k3 is about d^2 / 2.
    k3 = np.expm1(np.minimum(moved, 80.0)) - moved
    return Mismatch(len(moved), float(-moved.mean()), float(k3.mean()), float(np.abs(moved).max()), float(out.mean()))


def by_origin(
    new: NDArray[np.float32], old: NDArray[np.float32], regions: Sequence[str], versions: NDArray[np.int64]
) -> Mapping[tuple[str, int], Mismatch]:
    """By (region, version) of each token; `regions` and `versions` have one row per token."""
    names = np.asarray(regions)
    found = {}
    for region in np.unique(names).tolist():
        for version in np.unique(versions[names == region]).tolist():
            own = (names == region) & (versions == version)
            found[region, version] = mismatch(new[own], old[own])
    return found
