"""Proof that a live engine holds a version: the sums of its parameters, and what it says to a canary."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from weightsync.errors import Corrupt, Invalid
from weightsync.format.layout import Layout
from weightsync.format.refs import VersionRef

CANARY_FILE = "weightsync-canary.json"  # among the small files of a version
MAX_CANARY_BYTES = 1 << 20
_SHOWN = 3


@runtime_checkable
class Speaking(Protocol):
    """An engine that can be asked for log-probabilities."""

    def logprobs(self, tokens: Sequence[int]) -> Sequence[float]:
        """Natural log-probability of each token after the first, given those before it, from the live weights."""
        ...


@dataclass(frozen=True)
class Canary:
    """What the publisher's model says to a few tokens: `logprobs` of each after the first, within `tolerance` (nats)."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    tolerance: float

    @classmethod
    def parse(cls, data: bytes) -> "Canary":
        """From `{"tokens": [...], "logprobs": [...], "tolerance": 0.01}`. Raises `Invalid`."""
        try:
            value: Any = json.loads(data) if len(data) <= MAX_CANARY_BYTES else None
            canary = cls(tuple(map(_token, value["tokens"])), tuple(map(_number, value["logprobs"])), _number(value["tolerance"]))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise Invalid(f"{CANARY_FILE} cannot be read: {error!r}", remedy="publish another one, or none") from None
        if len(canary.logprobs) != len(canary.tokens) - 1 or not canary.logprobs or canary.tolerance < 0:
            raise Invalid(f"{CANARY_FILE} does not have one log-probability per token after the first", remedy="publish another one")
        return canary

    def check(self, found: Sequence[float], version: VersionRef) -> None:
        """Raises `Corrupt` where an engine said something else."""
        if len(found) != len(self.logprobs):
            raise Corrupt(f"the canary of version {version.version} got {len(found)} log-probabilities, not {len(self.logprobs)}")
        worst = max(abs(one - other) if math.isfinite(one) else math.inf for one, other in zip(found, self.logprobs, strict=True))
        if worst > self.tolerance:
            raise Corrupt(f"the canary of version {version.version} is off by {worst:.3g}, more than {self.tolerance:g}")


def check_sums(layout: Layout, expected: NDArray[np.uint64], live: Mapping[str, int], version: VersionRef) -> tuple[str, ...]:
    """The tensors that the engine cannot see. Raises `Corrupt` where one that it sees is another than the version's, or it sees none."""
    names = [tensor.name for tensor in layout.tensors]
    unseen = tuple(name for name in names if name not in live)
    if names and len(unseen) == len(names):
        raise Corrupt(f"the engine shows no tensor of version {version.version}", remedy="check that it runs the model of this run")
    wrong = [name for number, name in enumerate(names) if name in live and int(live[name]) != int(expected[number])]
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise Corrupt(f"{len(wrong)} of {len(names)} live tensors are not those of version {version.version}: {wrong[:_SHOWN]}{more}")
    return unseen


def _token(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no token")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)
