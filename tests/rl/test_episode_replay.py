import asyncio
from dataclasses import replace

import numpy as np
import pytest

from tests.rl.scripted import Scripted, cut
from tests.rl.test_zygote import _works
from weightsync.clock import SYSTEM
from weightsync.rl.compaction import Compaction
from weightsync.rl.environments import open_environment
from weightsync.rl.episode import Rules, play
from weightsync.rl.episode_replay import replay
from weightsync.rl.records import Grade, Outcome, Task
from weightsync.rl.sandbox.zygote import Zygote

TASK = Task(4, "sort", 9, 1)
SORT = open_environment("sort")


def played(script, environment=SORT, task=TASK, rules=None):
    return asyncio.run(play(environment, task, 0, Scripted(script), clock=SYSTEM, rules=rules))


def differences(episode, environment=SORT, task=TASK, rules=None):
    return asyncio.run(replay(environment, task, episode, clock=SYSTEM, rules=rules))


@pytest.mark.parametrize("script", [["012"], ["0123456789"], [cut("01", 3), "2"], [""]])
def test_episodes_are_the_same_again(script):
    assert differences(played(script)) == []


def test_what_differs_is_named():
    episode = played(["012"])
    (segment,) = episode.segments
    other = replace(segment, tokens=np.where(segment.made, 65, segment.tokens).astype(np.int32))
    assert differences(replace(episode, grade=Grade(Outcome.GRADED, 0.5)))[0].startswith("grade")
    assert differences(replace(episode, segments=(segment, segment))) == ["1 segments instead of 2"]
    assert differences(replace(episode, segments=(other,)))  # no end where there was one
    assert any("never asked" in line for line in differences(episode, task=replace(TASK, seed=10)))


@pytest.mark.skipif(not _works(), reason="this machine makes no namespaces")
def test_programs_and_summaries_are_the_same_again():
    async def use():
        async with Zygote() as sandboxes:
            environment, task = open_environment("python", sandboxes), Task(0, "python", 3, 1)
            rules = Rules(window=300, compaction=Compaction(max_tokens=20))
            code = "run:import random,time;print(random.random(),time.time())"
            script = [code, "I did it", environment.problem(3).answer]
            episode = await play(environment, task, 0, Scripted(script), clock=SYSTEM, rules=rules)
            return episode, await replay(environment, task, episode, clock=SYSTEM, rules=rules)

    episode, found = asyncio.run(use())
    assert episode.grade.outcome is Outcome.GRADED, episode.grade
    assert found == []
