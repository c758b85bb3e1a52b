import asyncio

import pytest

from tests.rl.scripted import Scripted
from weightsync.clock import SYSTEM
from weightsync.errors import Invalid
from weightsync.rl.environments import open_environment
from weightsync.rl.episode import play
from weightsync.rl.records import Outcome, Task


def reward(environment, seed, said):
    episode = asyncio.run(play(environment, Task(0, environment.name, seed, 1), 0, Scripted([said]), clock=SYSTEM))
    assert episode.grade.outcome is Outcome.GRADED
    return episode.grade.reward


@pytest.mark.parametrize("name", ["sort", "sort:9", "arithmetic", "arithmetic:4"])
def test_right_answers_earn_one_and_others_nothing(name):
    environment = open_environment(name)
    assert environment.name == name
    for seed in range(20):
        question = environment.problem(seed)
        assert question == environment.problem(seed)
        assert reward(environment, seed, question.answer) == 1.0
        assert reward(environment, seed, question.answer[:-1]) == 0.0
        assert reward(environment, seed, question.answer + "0") == 0.0


def test_problems_differ():
    for name in ("sort", "arithmetic"):
        environment = open_environment(name)
        assert len({environment.problem(seed).prompt for seed in range(50)}) > 40


def test_a_sort_is_sorted():
    question = open_environment("sort").problem(3)
    assert question.prompt.endswith(">")
    assert "".join(sorted(question.prompt[:-1])) == question.answer


def test_arithmetic_is_right():
    question = open_environment("arithmetic").problem(11)
    assert str(eval(question.prompt.rstrip("="))) == question.answer  # our own text


@pytest.mark.parametrize("name", ["", "chess", "sort:0", "sort:x", "arithmetic:99"])
def test_names_that_mean_nothing_are_refused(name):
    with pytest.raises(Invalid):
        open_environment(name)
