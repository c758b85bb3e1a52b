import asyncio

import pytest

from tests.rl.scripted import Scripted
from tests.rl.test_zygote import _works
from weightsync.clock import SYSTEM
from weightsync.errors import Invalid, Unavailable
from weightsync.rl.environments import open_environment
from weightsync.rl.episode import Rules, play
from weightsync.rl.graders.functions import Case, grade_function
from weightsync.rl.graders.retry import Patience, graded
from weightsync.rl.records import Grade, Outcome, Task
from weightsync.rl.sandbox.zygote import Zygote

needs_sandboxes = pytest.mark.skipif(not _works(), reason="this machine makes no namespaces")
QUICK = Patience(attempts=4, limit_s=0.2, longest_wait_s=0.0)


def attempts(*outcomes):
    left = list(outcomes)

    async def grade():
        now = left.pop(0)
        if isinstance(now, Exception):
            raise now
        if now == "hang":
            await asyncio.sleep(60)
        return now

    return grade, left


FAILED = Grade(Outcome.INFRA_ERROR, 0.0, why="no sandbox")
GOOD = Grade(Outcome.GRADED, 0.7)


def test_failures_of_the_machinery_are_tried_again():
    grade, left = attempts(Unavailable("gone"), FAILED, "hang", GOOD)
    assert asyncio.run(graded(grade, QUICK)) == GOOD
    assert not left


def test_what_cannot_be_graded_is_said_to_be_so():
    grade, _ = attempts(*[Unavailable("gone")] * 4)
    found = asyncio.run(graded(grade, QUICK))
    assert found.outcome is Outcome.INFRA_ERROR
    assert "gone" in found.why


@pytest.mark.parametrize("outcome", [GOOD, Grade(Outcome.GRADED, 0.0), Grade(Outcome.MASKED, 0.0)])
def test_an_answer_is_taken_the_first_time(outcome):
    grade, left = attempts(outcome, GOOD)
    assert asyncio.run(graded(grade, QUICK)) == outcome
    assert left == [GOOD]


def test_mistakes_are_not_tried_again():
    grade, left = attempts(Invalid("no such function"), GOOD)
    with pytest.raises(Invalid):
        asyncio.run(graded(grade, QUICK))
    assert left == [GOOD]


CASES = (Case([[1, 2]], 3), Case([[5]], 5), Case([[]], 0))


def passed(source, function="f", cases=CASES):
    async def use():
        async with Zygote() as sandboxes:
            return await grade_function(sandboxes, source, function, cases, partly=True)

    grade = asyncio.run(use())
    assert grade.outcome is Outcome.GRADED
    assert grade.scores == {"passed": grade.reward}
    return grade.reward


@needs_sandboxes
@pytest.mark.parametrize(
    ("source", "share"),
    [
        ("def f(x): return sum(x)", 1),
        ("f = lambda x: 3", 1 / 3),
        ("f = lambda x: sum(x) if x else 1 / 0", 2 / 3),
        ("f = lambda x: float(sum(x))", 0),  # 3.0 is not 3
        ("f = lambda x: True", 0),
        ("def g(x): return sum(x)", 0),
        ("syntax error", 0),
        ("", 0),
        ("import os\nos._exit(0)", 0),
        ("def f(x): print(sum(x)); return 4", 0),  # what it prints is no answer
        ("import os\nos.write(1, b'3\\n' * 99)\nf = sum", 0),
        ("class All:\n    def __eq__(self, other): return True\nf = lambda x: All()", 0),
        ("def f(x): return f(x)", 0),
    ],
)
def test_only_right_results_count(source, share):
    assert passed(source) == pytest.approx(share)


SPY = """
import gc, os
def f(x):
    files = "".join(open(name).read() for name in os.listdir(".") if os.path.isfile(name))
    seen = repr(gc.get_objects()) + files + str(dict(os.environ))
    wanted = "828172"[::-1]
    return int(wanted) if wanted in seen else 0
"""


@needs_sandboxes
def test_the_right_results_are_not_in_the_sandbox():
    assert passed(SPY, cases=(Case([[1]], 271828),)) == 0
    assert passed(SPY, cases=(Case([[271828]], 271828),)) == 1  # it finds what is there


@needs_sandboxes
def test_python_exercises_are_run_and_code_may_be_tried_first():
    async def use():
        async with Zygote() as sandboxes:
            environment = open_environment("python", sandboxes)
            rewards = []
            for seed in range(8):
                exercise = environment.problem(seed)
                for script in ([exercise.answer], ["f=lambda x:None"], ["run:print(6*7)", exercise.answer], ["run:1/0"] * 3):
                    policy = Scripted(list(script))
                    task = Task(0, "python", seed, 1)
                    episode = await play(environment, task, 0, policy, clock=SYSTEM, rules=Rules(window=512))
                    assert episode.grade.outcome is Outcome.GRADED, episode.grade
                    rewards.append(episode.grade.reward)
                    if script[0] == "run:print(6*7)":
                        assert policy.asked[1][0].endswith("\n[42\n]\n")
            return rewards

    assert asyncio.run(use()) == [1.0, 0.0, 1.0, 0.0] * 8


@pytest.mark.parametrize("task", ["basic_arithmetic", "spell_backward", "letter_counting"])
def test_tasks_of_reasoning_gym(task):
    environment = open_environment(f"gym:{task}")
    entry = environment.problem(3)
    assert entry.prompt == environment.problem(3).prompt != environment.problem(4).prompt

    async def reward(said):
        return (await play(environment, Task(0, environment.name, 3, 1), 0, Scripted([said]), clock=SYSTEM)).grade.reward

    assert asyncio.run(reward(entry.answer)) == 1.0
    assert asyncio.run(reward("?")) < 0.1


def test_environments_that_cannot_be_had():
    with pytest.raises(Invalid, match="reasoning-gym"):
        open_environment("gym:no_such_task").problem(1)


@needs_sandboxes
def test_the_loop_can_open_python_by_its_name_alone():
    environment = open_environment("python")
    episode = play(environment, Task(0, "python", 3, 1), 0, Scripted([environment.problem(3).answer]), clock=SYSTEM)

    async def use():
        try:
            return await episode
        finally:
            await environment.sandboxes.close()

    assert asyncio.run(use()).grade.reward == 1.0
