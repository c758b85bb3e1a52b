"""Where the demo's checkpoints come from: a policy that is being trained, or the user's own files."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from weightsync.errors import Invalid

SUFFIX = ".safetensors"


class Checkpoint(NamedTuple):
    """One state of the weights on disk, its training step, and a remark for the table."""

    step: int
    path: Path
    remark: str = ""


def given(directory: Path) -> list[Checkpoint]:
    """The checkpoints in `directory`: its subdirectories with safetensors files, else its safetensors files, in natural order."""
    if not directory.is_dir():
        raise Invalid(f"{str(directory)!r} is not a directory", remedy="name the directory that holds successive checkpoints")
    entries = sorted(directory.iterdir(), key=lambda path: _natural(path.name))
    found = [path for path in entries if path.is_dir() and any(path.glob(f"*{SUFFIX}"))]
    found = found or [path for path in entries if path.suffix == SUFFIX and path.is_file()]
    if not found:
        raise Invalid(f"{str(directory)!r} holds no checkpoints", remedy="put one directory, or one safetensors file, per step into it")
    return [Checkpoint(number, path, path.name) for number, path in enumerate(found, 1)]


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def trained(home: Path, steps: int, learning_rate: float) -> Iterator[Checkpoint]:
    """A small policy, warmed up, then after each of `steps` steps of GRPO. Needs torch."""
    try:
        from weightsync.rl.demo import train
    except ImportError as error:
        remedy = "install weightsync[rl], or name your own checkpoints with --checkpoints DIR"
        raise Invalid(f"training needs torch ({error})", remedy=remedy) from None
    for path, result in train(home, steps, learning_rate):
        yield Checkpoint(result.step, path, f"{result.reward:.3f}") if result else Checkpoint(0, path, "-")
