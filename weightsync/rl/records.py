"""What travels through the loop: tasks out, groups of graded episodes back. Exact tokens, never text.

    Task -> worker -> Episode (segments of tokens, a grade) x samples -> Group -> trainer

A group answers one task and is counted under the task's number: it counts exactly once, however often it is made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Task:
    """What to do: `samples` episodes of the task that `environment` makes from `seed`. `number` counts from 0 over the run."""

    number: int
    environment: str
    seed: int
    samples: int


@dataclass(frozen=True)
class Segment:
    """One context window as the engine saw it; all arrays have one row per token.

    `tokens` int32. `made` bool: the policy drew this token (not: prompt, tool output). `logprobs` float32: of drawn tokens under the
    policy that drew them, 0 elsewhere. `versions` int64: the version that drew it, 0 elsewhere. `experts` uint8 (tokens, layers, k): the
    experts that the routers chose where they read this token, 255 where nothing was recorded; None for a dense model.
    """

    tokens: NDArray[np.int32]
    made: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int64]
    experts: NDArray[np.uint8] | None = None


class Outcome(StrEnum):
    """Whether an episode's reward means something. Only `GRADED` ones do; an infrastructure error is never a zero."""

    GRADED = "graded"
    INFRA_ERROR = "infra_error"
    MASKED = "masked"


@dataclass(frozen=True)
class Grade:
    """What a grader found. `reward` is 0 unless graded; `scores` are the named dimensions behind it; `why` is for people."""

    outcome: Outcome
    reward: float
    scores: Mapping[str, float] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True)
class Episode:
    """One attempt at a task; `sample` counts from 0 within the group. All its segments share the grade."""

    sample: int
    segments: tuple[Segment, ...]
    grade: Grade
    seconds: float = 0.0


@dataclass(frozen=True)
class Group:
    """All attempts at a task by one worker. `made_s`: when it was complete, UNIX time of the worker's clock."""

    task: Task
    episodes: tuple[Episode, ...]
    worker: str
    region: str
    made_s: float = 0.0

    @property
    def oldest_version(self) -> int:
        """Of all versions that drew one of its tokens; 0 when none did."""
        drawn = [int(part.versions[part.made].min()) for one in self.episodes for part in one.segments if part.made.any()]
        return min(drawn, default=0)
