"""Learning from tokens that are four versions old: the default loss gains where no correction loses what imitation had given."""

from collections import deque

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.rl.made import drawn_episode, one_thread  # noqa: E402
from weightsync.rl.decoder import Decoder, Shape  # noqa: E402
from weightsync.rl.environments.sort import Sort  # noqa: E402
from weightsync.rl.imitation import examples  # noqa: E402
from weightsync.rl.learner import Learner, LearnerSettings  # noqa: E402
from weightsync.rl.records import Group, Task  # noqa: E402
from weightsync.rl.sampler import Draw, Sampler  # noqa: E402
from weightsync.rl.text import decode, encode  # noqa: E402

_one_thread = pytest.fixture(autouse=True)(one_thread)

SMALL = Shape(vocabulary=128, width=64, layers=2, heads=2, kv_heads=2, head_width=32, mlp_width=128, context=24)
SORT = Sort(3)
LAG, PROMPTS, SAMPLES, STEPS = 4, 12, 16, 60


def _groups(actor: Decoder, step: int, seed: int, random: np.random.Generator) -> list[Group]:
    sampler = Sampler(actor, PROMPTS * SAMPLES)
    tasks = [Task(step * PROMPTS + at, "sort:3", seed * 100_000 + step * PROMPTS + at, SAMPLES) for at in range(PROMPTS)]
    questions = [SORT.problem(task.seed) for task in tasks]
    draws = [[Draw(encode(one.prompt).tolist(), random.random(4)) for _ in range(SAMPLES)] for one in questions]
    for draw in (draw for row in draws for draw in row):
        sampler.add(draw)
    while sampler.busy:
        sampler.step(max(1, step + 1 - LAG))
    return [
        Group(
            task, tuple(drawn_episode(draw, at, float(decode(draw.drawn) == one.answer)) for at, draw in enumerate(row)), "worker", "home"
        )
        for task, one, row in zip(tasks, questions, draws, strict=True)
    ]


def _rewards(loss: str, seed: int) -> list[float]:
    """Mean reward by fifth of a run at lag 4."""
    learner = Learner(LearnerSettings(shape=SMALL, loss=loss, learning_rate=8e-4, seed=seed))
    learner.imitate(examples(SORT, 64 * 120, spoiled=0.5, seed=seed))
    actor, random, rewards = Decoder(SMALL, torch.Generator()).bfloat16(), np.random.default_rng(seed), []
    held = deque([{name: tensor.clone() for name, tensor in learner.weights().items()}], LAG + 1)
    for step in range(STEPS):
        actor.load_state_dict(held[0])
        rewards.append(learner.consume(_groups(actor, step, seed, random), version=step + 1).metrics["reward"])
        held.append({name: tensor.clone() for name, tensor in learner.weights().items()})
    return [float(np.mean(part)) for part in np.array_split(rewards, 5)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_at_lag_four_the_default_learns_where_no_correction_collapses(seed: int) -> None:
    default, none = _rewards("dppo", seed), _rewards("none", seed)
    assert default[-1] > default[0] + 0.12
    assert min(none) < none[0] - 0.05
    assert none[-1] < default[-1] - 0.1
