"""What `weightsync demo` trains: a small policy, saved after every step of GRPO as a checkpoint directory."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from weightsync.rl.tiny import Result, Settings, Trainer

WARM_UP_STEPS = 40  # of imitation: enough for a notion of the task
SETTLE_STEPS = 8  # of GRPO, until AdamW's averages are at rest and a step changes what a later step would


class Saved(NamedTuple):
    """A checkpoint directory, and the step that led to it (None: the warmed-up policy)."""

    path: Path
    result: Result | None


def train(home: Path, steps: int, learning_rate: float) -> Iterator[Saved]:
    """The warmed-up policy, then the policy after each of `steps` steps, as directories in `home`."""
    # The policy is too small to gain from more threads, and on a busy machine they wait for each other in spin loops, for minutes.
    torch.set_num_threads(1)
    trainer = Trainer(Settings(learning_rate=learning_rate))
    trainer.warm_up(steps=WARM_UP_STEPS, settle=SETTLE_STEPS)
    for step in range(steps + 1):
        result = trainer.step() if step else None
        path = home / f"step-{step}"
        trainer.save(path)
        yield Saved(path, result)
