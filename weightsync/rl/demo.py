"""What `weightsync demo` trains: a small policy, saved after every step of GRPO as a checkpoint directory."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from weightsync.rl.tiny import Result, Settings, Trainer


class Saved(NamedTuple):
    """A checkpoint directory, and the step that led to it (None: the warmed-up policy)."""

    path: Path
    result: Result | None


def train(home: Path, steps: int, learning_rate: float) -> Iterator[Saved]:
    """The warmed-up policy, then the policy after each of `steps` steps, as directories in `home`."""
    trainer = Trainer(Settings(learning_rate=learning_rate))
    trainer.warm_up()
    for step in range(steps + 1):
        result = trainer.step() if step else None
        path = home / f"step-{step}"
        trainer.save(path)
        yield Saved(path, result)
