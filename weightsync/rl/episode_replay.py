"""Plays a recorded episode again, without a policy: the same tokens, the same programs in the same sandboxes, the same grade.

    problems = await replay(environment, task, episode, clock=SYSTEM)      # none: byte for byte the same

The recorded tokens answer where the policy did. Problems come from the task's seed; programs in sandboxes read the seed and the clock that
their environment gives them. What then differs was not reproducible, and the first difference says where.
"""

from collections.abc import Sequence

import numpy as np

from weightsync.clock import Clock
from weightsync.errors import Conflict
from weightsync.rl.api import Completion, Environment, Finish
from weightsync.rl.episode import Rules, Talk, derive, outcome_of
from weightsync.rl.records import Episode, Segment, Task
from weightsync.rl.text import END, decode

SHOWN = 40
ARRAYS = ("tokens", "made", "logprobs", "versions", "experts")


class Recorded:
    """A `Policy` that draws what was drawn. Raises `Conflict` where it is asked in another way than it was then."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments

    async def complete(
        self, tokens: Sequence[int], *, max_tokens: int, temperature: float = 1.0, seed: int | None = None, min_version: int = 0
    ) -> Completion:
        """The recorded turn after `tokens`."""
        del temperature, seed, min_version
        given = np.asarray(tokens, np.int32)
        start = len(given)
        for segment in self._segments:
            if len(segment.tokens) > start and segment.made[start] and np.array_equal(segment.tokens[:start], given):
                return _turn(segment, start, max_tokens)
        raise Conflict(f"the policy was never asked after ...{decode(given)[-SHOWN:]!r}", remedy="the episode is not reproducible here")


def _turn(segment: Segment, start: int, max_tokens: int) -> Completion:
    stop = start
    while stop < min(len(segment.tokens), start + max_tokens) and segment.made[stop]:
        stop += 1
        if segment.tokens[stop - 1] == END:
            break
    ended = bool(segment.tokens[stop - 1] == END)
    if not ended and stop < start + max_tokens:
        raise Conflict(f"a recorded turn ends after {stop - start} of {max_tokens} tokens, in the middle", remedy="it was cut off")
    part = slice(start, stop)
    experts = None if segment.experts is None else segment.experts[part]
    context = None if segment.experts is None else segment.experts[:start]
    finish = Finish.STOP if ended else Finish.LENGTH
    return Completion(segment.tokens[part], segment.logprobs[part], segment.versions[part], finish, experts, context)


async def replay(environment: Environment, task: Task, episode: Episode, *, clock: Clock, rules: Rules | None = None) -> list[str]:
    """What differs when `episode` of `task` is played and graded again under the same `rules`; nothing when all is the same."""
    rules = rules or Rules()
    talk = Talk(Recorded(episode.segments), clock, rules, derive(task.seed, task.number, episode.sample))
    grade = await outcome_of(environment, task.seed, talk, rules.limit_s)
    found = [f"grade: {grade} instead of {episode.grade}"] if grade != episode.grade else []
    if len(talk.segments) != len(episode.segments):
        return [*found, f"{len(talk.segments)} segments instead of {len(episode.segments)}"]
    for number, (now, then) in enumerate(zip(talk.segments, episode.segments, strict=True)):
        differ = [name for name in ARRAYS if not _same(getattr(now, name), getattr(then, name))]
        found.extend(f"segment {number}: {name} differ" for name in differ)
    return found


def _same(now: np.ndarray | None, then: np.ndarray | None) -> bool:
    if now is None or then is None:
        return now is then
    return now.dtype == then.dtype and now.shape == then.shape and now.tobytes() == then.tobytes()
