"""What a policy is worth on problems that it did not train on."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from weightsync.clock import Clock
from weightsync.errors import Corrupt, Invalid, NotFound
from weightsync.rl import checkpoint as checkpoints
from weightsync.rl.api import Environment, Policy
from weightsync.rl.decoder import Decoder, Shape
from weightsync.rl.episode import Rules, play
from weightsync.rl.records import Episode, Outcome, Task

FIRST_SEED = 1 << 48  # far above the seeds of training and of warm starts


@dataclass(frozen=True)
class Evaluation:
    """Of the graded episodes; `outcomes` counts all of them. `error` is the standard error of `reward`."""

    reward: float
    error: float
    outcomes: dict[str, int]
    scores: dict[str, float]


async def evaluate(
    policy: Policy,
    environment: Environment,
    problems: int,
    *,
    clock: Clock,
    rules: Rules | None = None,
    seed: int = 0,
    at_once: int = 256,
) -> Evaluation:
    """Plays `problems` problems once each, `at_once` of them together. The same problems for the same `seed`."""
    room = asyncio.Semaphore(at_once)

    async def one(number: int) -> Episode:
        async with room:
            task = Task(number, environment.name, FIRST_SEED + seed * problems + number, 1)
            return await play(environment, task, 0, policy, clock=clock, rules=rules)

    return summed(await asyncio.gather(*map(one, range(problems))))


def summed(episodes: Sequence[Episode]) -> Evaluation:
    """Means over what was graded."""
    graded = [one.grade for one in episodes if one.grade.outcome is Outcome.GRADED]
    rewards = np.array([grade.reward for grade in graded])
    names = sorted({name for grade in graded for name in grade.scores})
    return Evaluation(
        float(rewards.mean()) if len(rewards) else 0.0,
        float(rewards.std(ddof=1) / np.sqrt(len(rewards))) if len(rewards) > 1 else 0.0,
        {outcome.value: count for outcome, count in sorted(Counter(one.grade.outcome for one in episodes).items())},
        {name: float(np.mean([grade.scores[name] for grade in graded if name in grade.scores])) for name in names},
    )


def load_policy(directory: Path) -> Decoder:
    """The bf16 policy of a Hugging Face directory of this shape, or of a trainer's checkpoint `step-NNNNNNNN`."""
    if (directory / checkpoints.STATE).exists():
        held = checkpoints.read(directory)
        tensors = {name.removeprefix("masters."): tensor for name, tensor in held.tensors.items() if name.startswith("masters.")}
        return _filled(Shape(**held.extra["shape"]), tensors, directory)
    files = sorted(directory.glob("*.safetensors"))
    if not files or not (directory / "config.json").exists():
        raise NotFound(f"{directory} holds no checkpoint", remedy="give a directory with config.json and safetensors files")
    try:
        config = json.loads((directory / "config.json").read_text())
        tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    except (ValueError, SafetensorError) as error:
        raise Corrupt(f"{directory} cannot be read: {error}") from error
    return _filled(Shape.of(config), tensors, directory)


def _filled(shape: Shape, tensors: dict[str, torch.Tensor], directory: Path) -> Decoder:
    decoder = Decoder(shape, torch.Generator())
    try:
        decoder.load_state_dict(tensors)
    except RuntimeError as error:
        raise Invalid(f"the tensors in {directory} are not those of its config.json: {error}") from error
    return decoder.bfloat16()
