import asyncio
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from tests.rl.scripted import DOWN, Scripted, completion, cut
from weightsync.clock import SYSTEM
from weightsync.errors import Corrupt, Invalid, Unavailable
from weightsync.rl.api import Finish
from weightsync.rl.compaction import Compaction
from weightsync.rl.environments.open import open_environment
from weightsync.rl.episode import Overflow, Rules, Talk, derive, play, play_group
from weightsync.rl.records import Grade, Outcome, Task
from weightsync.rl.text import END, decode, encode
from weightsync.testing.clock import ManualClock

SORT = open_environment("sort")


def talk(script, **named):
    rules = named.pop("rules", Rules())
    return Talk(Scripted(script), ManualClock(), rules, **named)


def run(coroutine):
    return asyncio.run(coroutine)


def test_tokens_are_recorded_as_they_were_made():
    dialogue = talk(["ab", "c"])

    async def both():
        return await dialogue.ask("x>", max_tokens=8), await dialogue.ask("y>", max_tokens=8)

    assert run(both()) == ("ab", "c")
    (segment,) = dialogue.segments
    assert segment.tokens.tolist() == [*b"x>ab", END, *b"y>c", END]
    assert segment.made.tolist() == [False, False, True, True, True, False, False, True, True]
    assert (segment.versions > 0).tolist() == segment.made.tolist()
    assert (segment.logprobs < 0).tolist() == segment.made.tolist()
    assert segment.tokens.dtype == "int32"
    assert segment.logprobs.dtype == "float32"
    assert segment.versions.dtype == "int64"


def test_the_policy_is_asked_with_exactly_what_it_drew_before():
    dialogue = talk(["ab", "c"])

    async def both():
        await dialogue.ask("x>", max_tokens=8)
        await dialogue.ask("y>", max_tokens=8)

    run(both())
    assert [context for context, *_ in dialogue.policy.asked] == ["x>", "x>aby>"]


def test_a_turn_without_end_goes_on_without_one():
    dialogue = talk(["abcdef"])
    assert run(dialogue.ask(">", max_tokens=3)) == "abc"
    assert decode(dialogue.segments[0].tokens) == ">abc"
    assert END not in dialogue.segments[0].tokens


def test_what_an_engine_drew_before_it_gave_up_stays_with_its_version():
    dialogue = talk([cut("ab", 3), DOWN, cut("", 4), lambda _: completion([*b"c", END], Finish.STOP, 5)])
    assert run(dialogue.ask(">", max_tokens=8)) == "abc"
    assert dialogue.segments[0].versions.tolist() == [0, 3, 3, 5, 5]
    assert [(asked, room) for asked, room, *_ in dialogue.policy.asked] == [(">", 8), (">ab", 6), (">ab", 6), (">ab", 6)]


def test_a_turn_that_is_full_when_the_engine_gives_up_is_done():
    dialogue = talk([cut("abc")])
    assert run(dialogue.ask(">", max_tokens=3)) == "abc"


def test_patience_ends():
    dialogue = talk([DOWN] * 3, rules=Rules(patience_s=0.0))
    with pytest.raises(Unavailable, match="no version serves"):
        run(dialogue.ask(">", max_tokens=3))


def test_draws_have_seeds_of_their_own_and_the_same_ones_again():
    first, again = talk(["ab", "c"], seed=7), talk(["ab", "c"], seed=7)

    async def both(dialogue):
        await dialogue.ask("x>", max_tokens=8)
        await dialogue.ask("y>", max_tokens=8)
        return [seed for _, _, seed, _ in dialogue.policy.asked]

    seeds = run(both(first))
    assert len(set(seeds)) == 2
    assert run(both(again)) == seeds
    assert derive(1, 2) != derive(1, 3) != derive(2, 2)


GOOD = [*b"ab", END]
BAD = {
    "lengths": completion(GOOD, Finish.STOP, logprobs=np.zeros(2, np.float32)),
    "too_many": completion([*b"abcdefghi"], Finish.LENGTH),
    "nothing": completion([], Finish.LENGTH),
    "vocabulary": completion([97, 200, END], Finish.STOP),
    "end": completion([97, END, 98, END], Finish.STOP),
    "logprobs": completion(GOOD, Finish.STOP, logprobs=np.array([-1, np.nan, -1], np.float32)),
    "versions": completion(GOOD, Finish.STOP, versions=np.array([1, 0, 1])),
    "experts": completion(GOOD, Finish.STOP, experts=np.zeros((2, 4, 2), np.uint8)),
    "context_experts": completion(GOOD, Finish.STOP, experts=np.zeros((3, 4, 2), np.uint8), context_experts=np.zeros((9, 4, 2), np.uint8)),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_together_is_refused_counted_and_named(name):
    dialogue = talk([BAD[name]])
    with pytest.raises(Corrupt, match=f"refused: {name}:"):
        run(dialogue.ask(">", max_tokens=8))
    assert dialogue.refused == {name: 1}
    assert not dialogue.segments[0].made.any()


@pytest.mark.parametrize("bad", [completion([97], Finish.STOP), completion(GOOD, Finish.LENGTH), completion([END, 97], Finish.STOP)])
def test_an_end_stands_at_the_end_of_a_turn_that_stopped_and_nowhere_else(bad):
    with pytest.raises(Corrupt, match="end"):
        run(talk([bad]).ask(">", max_tokens=8))


def test_log_probabilities_above_zero_are_refused_but_for_rounding():
    with pytest.raises(Corrupt, match="logprobs"):
        run(talk([completion(GOOD, Finish.STOP, logprobs=np.full(3, 0.5, np.float32))]).ask(">", max_tokens=8))
    assert run(talk([completion(GOOD, Finish.STOP, logprobs=np.full(3, 1e-6, np.float32))]).ask(">", max_tokens=8)) == "ab"


def test_experts_of_all_tokens_are_kept_from_their_first_reading():
    def experts(*rows):
        return np.array([[[row]] for row in rows], np.uint8)

    first = completion([97, END], Finish.STOP, experts=experts(3, 255), context_experts=experts(1, 2))
    second = completion([98, END], Finish.STOP, experts=experts(7, 255), context_experts=experts(9, 9, 9, 4, 5))
    dialogue = talk([first, second])

    async def both():
        await dialogue.ask("x>", max_tokens=4)
        await dialogue.ask("y", max_tokens=4)

    run(both())
    assert dialogue.segments[0].experts.ravel().tolist() == [1, 2, 3, 4, 5, 7, 255]


COMPACTION = Compaction(ask="[sum]", max_tokens=6, before="{", after="}")


def test_a_context_that_overflows_goes_on_in_a_new_segment_with_the_policys_own_summary():
    dialogue = talk(["aaaaaaaa", "so far", "done"], rules=Rules(window=37, compaction=COMPACTION))

    async def both():
        await dialogue.ask("task>", max_tokens=10)
        return await dialogue.ask("next>", max_tokens=8)

    assert run(both()) == "done"
    old, new = dialogue.segments
    assert decode(old.tokens) == "task>aaaaaaaa[sum]so far"
    assert decode(old.tokens[old.made]) == "aaaaaaaaso far"  # the summary is trained
    assert decode(new.tokens) == "task>{so far}next>done"
    assert decode(new.tokens[new.made]) == "done"  # and counts once
    assert len(old.tokens) <= 37


def test_without_compaction_or_room_it_overflows():
    async def both(dialogue):
        await dialogue.ask("task>", max_tokens=10)
        await dialogue.ask("next>", max_tokens=20)

    with pytest.raises(Overflow, match="window of 36"):
        run(both(talk(["aaaaaaaa"], rules=Rules(window=36))))
    with pytest.raises(Overflow):
        run(both(talk(["aaaaaaaa", "so far"], rules=Rules(window=36, compaction=COMPACTION))))
    with pytest.raises(Overflow):
        run(talk([], rules=Rules(window=36, compaction=COMPACTION)).ask("x" * 40, max_tokens=1))


@dataclass(frozen=True)
class Odd:
    """An environment that fails in every way."""

    how: str
    name: str = "odd"

    def problem(self, seed):
        if self.how == "problem":
            raise Invalid("no such problem")
        return seed

    async def play(self, problem, dialogue):
        if self.how == "play":
            raise ZeroDivisionError("agent")
        if self.how == "hang":
            await asyncio.sleep(60)
        return await dialogue.ask("q>", max_tokens=4)

    async def grade(self, problem, result):
        if self.how == "grade":
            raise Unavailable("no sandbox")
        if self.how == "masked":
            return Grade(Outcome.MASKED, 0.7, {}, "not to be trained")
        return Grade(Outcome.GRADED, float("nan") if self.how == "nan" else 0.0)


@pytest.mark.parametrize(
    ("how", "outcome", "why"),
    [
        ("problem", Outcome.INFRA_ERROR, "invalid: no such problem"),
        ("play", Outcome.INFRA_ERROR, "ZeroDivisionError: agent"),
        ("hang", Outcome.INFRA_ERROR, "timeout"),
        ("grade", Outcome.INFRA_ERROR, "unavailable: no sandbox"),
        ("nan", Outcome.INFRA_ERROR, "nan"),
        ("masked", Outcome.MASKED, "not to be trained"),
        ("fine", Outcome.GRADED, ""),
    ],
)
def test_failures_are_outcomes_and_never_a_silent_zero(how, outcome, why):
    episode = run(play(Odd(how), Task(0, "odd", 1, 1), 0, Scripted(["abc"]), clock=SYSTEM, rules=Rules(limit_s=0.2)))
    assert episode.grade.outcome is outcome
    assert why in episode.grade.why
    assert episode.grade.reward == 0.0


def test_an_overflow_is_masked_and_a_refused_completion_counted():
    refused = Counter()
    task = Task(0, "sort", 1, 1)
    episode = run(play(SORT, task, 0, Scripted([]), clock=SYSTEM, rules=Rules(window=8), refused=refused))
    assert episode.grade.outcome is Outcome.MASKED
    episode = run(play(SORT, task, 0, Scripted([BAD["versions"]]), clock=SYSTEM, refused=refused))
    assert episode.grade.outcome is Outcome.INFRA_ERROR
    assert refused == {"versions": 1}


def test_one_failed_episode_leaves_the_others_alone():
    right = SORT.problem(5).answer
    script = [right, RuntimeError("engine"), right, "123"]
    episodes = run(play_group(SORT, Task(2, "sort", 5, 4), Scripted(script), clock=SYSTEM))
    assert [episode.sample for episode in episodes] == [0, 1, 2, 3]
    assert [episode.grade.outcome for episode in episodes] == ["graded", "infra_error", "graded", "graded"]
    assert [episode.grade.reward for episode in episodes] == [1.0, 0.0, 1.0, 0.0]


def test_cancelling_an_episode_cancels_it():
    async def cancelled():
        playing = asyncio.create_task(play(Odd("hang"), Task(0, "odd", 1, 1), 0, Scripted([]), clock=SYSTEM))
        await asyncio.sleep(0.01)
        playing.cancel()
        await playing

    with pytest.raises(asyncio.CancelledError):
        run(cancelled())


def test_encoded_prompts_only():
    with pytest.raises(Invalid, match="vocabulary"):
        run(talk([]).ask("é", max_tokens=3))
    assert encode("a").tolist() == [97]
