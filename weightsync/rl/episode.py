"""One attempt at a task: an agent talks with the policy, every token is recorded as made, and what comes of it is graded.

    environment.play(problem, dialogue) -> result
        dialogue.ask(text) -> policy.complete(exact tokens) -> recorded, decoded
    environment.grade(problem, result)  -> graded | infra_error | masked

Text that the policy said is decoded for the agent and never encoded again. A failure on the way is an outcome of the episode and ends
nothing else: no worker dies of it, and none of it becomes a reward of zero.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from weightsync.clock import Clock, jitter
from weightsync.errors import Invalid, Unavailable, WeightsyncError
from weightsync.rl.api import Dialogue, Environment, Finish, Policy
from weightsync.rl.compaction import Compaction
from weightsync.rl.recording import Recording
from weightsync.rl.records import Episode, Grade, Outcome, Segment, Task
from weightsync.rl.text import decode, encode

FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 2.0


class Overflow(Invalid):
    """The conversation does not fit into a window, and summing it up does not help."""


@dataclass(frozen=True)
class Rules:
    """How episodes are played. `window` is the longest context in tokens; without `compaction`, what does not fit ends the episode.

    `patience_s`: for how long an engine may give up or serve nothing before the episode does. `limit_s`: for the whole episode.
    """

    window: int = 256
    temperature: float = 1.0
    compaction: Compaction | None = None
    patience_s: float = 60.0
    limit_s: float = 600.0


@dataclass
class Talk:
    """A `Dialogue` that records. `refused` counts completions that were refused, by what was wrong with them."""

    policy: Policy
    clock: Clock
    rules: Rules = field(default_factory=Rules)
    seed: int = 0
    min_version: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    _done: list[Segment] = field(default_factory=list)
    _window: Recording = field(init=False)
    _task: NDArray[np.int32] | None = None
    _draws: int = 0

    def __post_init__(self) -> None:
        self._window = Recording(self.refused)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All windows so far, in order."""
        return (*self._done, self._window.segment()) if len(self._window) else tuple(self._done)

    async def ask(self, text: str, *, max_tokens: int) -> str:
        """Appends `text`, lets the policy take a turn of at most `max_tokens` tokens, and gives what it said."""
        tokens = encode(text)
        if self._task is None:
            self._task = tokens
        if not self._fits(len(tokens), max_tokens):
            await self._compact()
            if not self._fits(len(tokens), max_tokens):
                raise Overflow(f"{len(self._window)} + {len(tokens)} + {max_tokens} tokens do not fit into a window of {self.rules.window}")
        self._window.give(tokens)
        return decode(await self._turn(max_tokens))

    def _fits(self, given: int, max_tokens: int) -> bool:
        reserve = self.rules.compaction.reserve if self.rules.compaction else 0
        return len(self._window) + given + max_tokens + reserve <= self.rules.window

    async def _compact(self) -> None:
        compaction = self.rules.compaction
        if compaction is None or self._task is None or not self._window.drawn:
            return
        self._window.give(encode(compaction.ask))
        summary = await self._turn(compaction.max_tokens)
        self._done.append(self._window.segment())
        self._window = Recording(self.refused)
        self._window.give(compaction.opening(self._task, summary))

    async def _turn(self, max_tokens: int) -> NDArray[np.int32]:
        """Draws until the turn ends. What an engine drew before it gave up stays, with its version: the turn goes on from there."""
        start, deadline_s, wait_s = len(self._window), self.clock.monotonic_s() + self.rules.patience_s, FIRST_WAIT_S
        while True:
            left = start + max_tokens - len(self._window)
            try:
                finish = await self._draw(left)
                if finish is not Finish.ABORTED or len(self._window) == start + max_tokens:
                    return np.array(self._window.tokens[start:], np.int32)
                why: Unavailable | None = None
            except Unavailable as error:
                why = error
            if self.clock.monotonic_s() >= deadline_s:
                raise Unavailable(f"the policy did not finish a turn within {self.rules.patience_s:g} s: {why or 'aborted'}") from why
            await asyncio.sleep(jitter(wait_s))
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def _draw(self, max_tokens: int) -> Finish:
        seed = derive(self.seed, self._draws)
        self._draws += 1
        completion = await self.policy.complete(
            list(self._window.tokens), max_tokens=max_tokens, temperature=self.rules.temperature, seed=seed, min_version=self.min_version
        )
        self._window.take(completion, max_tokens=max_tokens)
        return completion.finish


async def play(
    environment: Environment,
    task: Task,
    sample: int,
    policy: Policy,
    *,
    clock: Clock,
    rules: Rules | None = None,
    min_version: int = 0,
    refused: Counter[str] | None = None,
) -> Episode:
    """Plays and grades sample number `sample` of `task`. Raises nothing but cancellation: whatever fails is the episode's outcome."""
    rules = rules or Rules()
    counter = Counter() if refused is None else refused
    talk = Talk(policy, clock, rules, derive(task.seed, task.number, sample), min_version, counter)
    started_s = clock.monotonic_s()
    grade = await outcome_of(environment, task.seed, talk, rules.limit_s)
    return Episode(sample, talk.segments, grade, clock.monotonic_s() - started_s)


async def play_group(
    environment: Environment,
    task: Task,
    policy: Policy,
    *,
    clock: Clock,
    rules: Rules | None = None,
    min_version: int = 0,
    refused: Counter[str] | None = None,
) -> tuple[Episode, ...]:
    """All samples of `task` at once."""
    episodes = (
        play(environment, task, sample, policy, clock=clock, rules=rules, min_version=min_version, refused=refused)
        for sample in range(task.samples)
    )
    return tuple(await asyncio.gather(*episodes))


async def outcome_of(environment: Environment, seed: int, dialogue: Dialogue, limit_s: float) -> Grade:
    """Lets the agent play the problem of `seed` and grades the result; failures are outcomes."""
    try:
        async with asyncio.timeout(limit_s):
            problem = environment.problem(seed)
            result = await environment.play(problem, dialogue)
            return checked(await environment.grade(problem, result))
    except Overflow as error:
        return Grade(Outcome.MASKED, 0.0, why=f"overflow: {error}")
    except WeightsyncError as error:
        return Grade(Outcome.INFRA_ERROR, 0.0, why=f"{error.kind}: {error}")
    except TimeoutError:
        return Grade(Outcome.INFRA_ERROR, 0.0, why=f"timeout: not done within {limit_s:g} s")
    except Exception as error:  # noqa: BLE001  agents and graders are others' programs; what they raise ends their episode alone
        return Grade(Outcome.INFRA_ERROR, 0.0, why=f"failed: {type(error).__name__}: {error}")


def checked(grade: Grade) -> Grade:
    """`grade`, or an infrastructure error where its reward is not a number; only graded episodes keep a reward."""
    if grade.outcome is not Outcome.GRADED:
        return Grade(grade.outcome, 0.0, grade.scores, grade.why)
    if not isfinite(grade.reward):
        return Grade(Outcome.INFRA_ERROR, 0.0, grade.scores, f"the grader's reward is {grade.reward}")
    return grade


def derive(seed: int, *path: int) -> int:
    """A seed below 2^63 for a part of what `seed` stands for; parts with other numbers are independent of it."""
    return int(np.random.SeedSequence([seed, *path]).generate_state(1, np.uint64)[0] >> np.uint64(1))
