"""Groups for tests of learning, made by hand or drawn by a policy."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from weightsync.rl.aligned import Reader
from weightsync.rl.decoder import Decoder, Shape
from weightsync.rl.records import Episode, Grade, Group, Outcome, Segment, Task
from weightsync.rl.sampler import Draw, Sampler

SHAPE = Shape(vocabulary=128, width=32, layers=2, heads=2, kv_heads=1, head_width=16, mlp_width=48, context=24)
MIXTURE = Shape(
    vocabulary=128, width=32, layers=2, heads=2, kv_heads=1, head_width=16, mlp_width=16, context=24, experts=8, chosen_experts=2
)


def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sharpened(decoder: Decoder, by: float = 6.0) -> None:
    """Makes an untrained decoder prefer something."""
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() > 1:
                parameter.mul_(by)


def graded(reward: float, *segments: Segment, sample: int = 0, outcome: Outcome = Outcome.GRADED) -> Episode:
    return Episode(sample, segments, Grade(outcome, reward))


def segment(length: int = 8, drawn: int = 4, version: int = 1, seed: int = 0) -> Segment:
    random = np.random.default_rng(seed)
    made = np.arange(length) >= length - drawn
    logprobs = np.where(made, -random.random(length), 0).astype(np.float32)
    tokens = random.integers(1, 127, length).astype(np.int32)
    return Segment(tokens, made, logprobs, np.where(made, version, 0).astype(np.int64))


def group(number: int, rewards: Sequence[float], region: str = "home", version: int = 1) -> Group:
    episodes = tuple(graded(reward, segment(seed=number * 100 + at, version=version), sample=at) for at, reward in enumerate(rewards))
    return Group(Task(number, "made", number, len(rewards)), episodes, "worker", region)


def drawn(
    decoder: Decoder, version: int, numbers: Sequence[int], samples: int = 4, *, room: int = 8, reader: Reader | None = None
) -> list[Group]:
    """Groups whose tokens `decoder` draws; the reward is the share of tokens that are even."""
    sampler, random = Sampler(decoder, slots=64, reader=reader), np.random.default_rng([version, *numbers])
    draws = [[Draw([65 + number % 26, 66, 67 + number % 7], random.random(room)) for _ in range(samples)] for number in numbers]
    for draw in (one for row in draws for one in row):
        sampler.add(draw)
    while sampler.busy:
        sampler.step(version)
    return [
        Group(Task(number, "made", number, samples), tuple(drawn_episode(draw, at) for at, draw in enumerate(row)), "worker", "home")
        for number, row in zip(numbers, draws, strict=True)
    ]


def drawn_episode(draw: Draw, sample: int, reward: float | None = None) -> Episode:
    """What a request drew; without `reward`, the share of even tokens is it."""
    found, given = draw.completion(), len(draw.context)
    zeros = np.zeros(given)
    experts = None if found.experts is None or found.context_experts is None else np.concatenate([found.context_experts, found.experts])
    part = Segment(
        np.array([*draw.context, *draw.drawn], np.int32),
        np.arange(draw.length) >= given,
        np.concatenate([zeros, found.logprobs]).astype(np.float32),
        np.concatenate([zeros, found.versions]).astype(np.int64),
        experts,
    )
    return graded(float(np.mean(found.tokens % 2 == 0)) if reward is None else reward, part, sample=sample)
