"""What each drawn token is credited with: from the grades of a group to one number per token."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from weightsync.rl.records import Episode, Group, Outcome

SPREAD = 1e-4  # beside a group's standard deviation
EQUAL = 1e-8  # rewards this close say nothing about which answer was better

Rows = NDArray[np.float32]
Credit = Callable[[Group], tuple[tuple[Rows, ...], ...] | None]
"""Advantages by episode and segment, float32 (tokens,), zero where the policy drew nothing; None where the group teaches nothing.

Another credit, by turn or by segment, is another function of this type: grades carry named scores, segments carry what was drawn.
"""


def grpo(group: Group) -> tuple[tuple[Rows, ...], ...] | None:
    """The reward beside those of the group, in its standard deviations, the same for all tokens of an episode.

    Only graded episodes count: the others neither move the mean nor are trained. Fewer than two of them, or all alike: None.
    Source: Shao et al. 2024 (GRPO), arXiv 2402.03300, section 4.1.2.
    """
    graded = np.array([one.grade.outcome is Outcome.GRADED for one in group.episodes], bool)
    rewards = np.array([one.grade.reward for one in group.episodes], np.float64)
    known = rewards[graded]
    if len(known) < 2 or np.ptp(known) < EQUAL:
        return None
    scaled = np.where(graded, (rewards - known.mean()) / (known.std(ddof=1) + SPREAD), 0.0)
    return tuple(spread(one, [value] * len(one.segments)) for one, value in zip(group.episodes, scaled.tolist(), strict=True))


def spread(episode: Episode, by_segment: list[float]) -> tuple[Rows, ...]:
    """One number per segment, on all tokens that the policy drew in it."""
    return tuple(np.where(part.made, np.float32(value), np.float32(0.0)) for part, value in zip(episode.segments, by_segment, strict=True))
