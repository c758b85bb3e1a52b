"""What a step says of itself: numbers for people and plots, and all that its record holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from weightsync.rl.batch import Row
from weightsync.rl.mismatch import Mismatch, by_origin, mismatch
from weightsync.rl.records import Group, Outcome


@dataclass(frozen=True)
class Trained:
    """One row that a step learnt from: its place (group, episode, segment) and, float32 by token, advantages and log-probabilities.

    The log-probabilities are the learner's, before the update; 0 at the first token, which nothing precedes.
    """

    place: tuple[int, int, int]
    advantages: NDArray[np.float32]
    logprobs: NDArray[np.float32]


@dataclass(frozen=True)
class Step:
    """What a step did. `version` is the one whose weights it began with; `mismatch` is by (region, version that drew the tokens)."""

    step: int
    version: int
    groups: tuple[Group, ...]
    trained: tuple[Trained, ...]
    metrics: Mapping[str, float]
    mismatch: Mapping[tuple[str, int], Mismatch]


def measured(
    step: int,
    groups: Sequence[Group],
    *,
    version: int,
    rows: Sequence[Row],
    silent: int,
    logprobs: Sequence[Tensor],
    losses: Sequence[float],
    norms: Sequence[float],
) -> Step:
    """Puts a step together; lag is 0 where `version` is. `silent`: groups that taught nothing; `logprobs`: by row, (length - 1,)."""
    trained = tuple(
        Trained(row.place, row.advantages, np.concatenate([np.zeros(1, np.float32), own.float().numpy()]))
        for row, own in zip(rows, logprobs, strict=True)
    )
    new = _drawn(rows, [one.logprobs for one in trained])
    old = _drawn(rows, [row.segment.logprobs for row in rows])
    versions = np.concatenate([np.zeros(0, np.int64), *(row.segment.versions[1:][row.segment.made[1:]] for row in rows)])
    regions = [row.region for row in rows for _ in range(int(row.segment.made[1:].sum()))]
    whole = mismatch(new, old)
    lags = version - versions if len(versions) and version else np.zeros(1, np.int64)
    finite = [norm for norm in norms if np.isfinite(norm)]
    metrics = _rewards(groups) | {
        "groups": float(len(groups)),
        "groups_silent": float(silent),
        "tokens_trained": float(len(new)),
        "loss": float(np.mean(losses)) if losses else 0.0,
        "gradient_norm": float(np.mean(finite)) if finite else 0.0,
        "updates_left_out": float(len(norms) - len(finite)),
        "k1": whole.k1,
        "k3": whole.k3,
        "logprob_change_max": whole.largest,
        "out_of_band": whole.out,
        "lag_mean": float(lags.mean()),
        "lag_max": float(lags.max()),
    }
    return Step(step, version, tuple(groups), trained, metrics, by_origin(new, old, regions, versions))


def _drawn(rows: Sequence[Row], values: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Of all tokens that were drawn and could be trained."""
    parts = (own[1:][row.segment.made[1:]] for row, own in zip(rows, values, strict=True))
    return np.concatenate([np.zeros(0, np.float32), *parts])


def _rewards(groups: Sequence[Group]) -> dict[str, float]:
    episodes = [episode for group in groups for episode in group.episodes]
    counts = {outcome: sum(one.grade.outcome is outcome for one in episodes) for outcome in Outcome}
    rewards = [one.grade.reward for one in episodes if one.grade.outcome is Outcome.GRADED]
    made = [sum(int(part.made.sum()) for part in one.segments) for one in episodes]
    return {
        "reward": float(np.mean(rewards)) if rewards else 0.0,
        **{f"episodes_{outcome.value}": float(count) for outcome, count in counts.items()},
        "tokens_per_episode": float(np.mean(made)) if made else 0.0,
    }
