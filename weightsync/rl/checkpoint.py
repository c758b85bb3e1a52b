"""The trainer's own checkpoint: weights, optimizer, and which groups they have learnt from. It is there wholly or not at all.

    HOME/step-00000012/state.safetensors   tensors
    HOME/step-00000012/state.json          step, groups consumed, digest of the tensors, what the caller adds

A group counts once a checkpoint that names it stands under its name: files are synced, then the directory is renamed, then its parent
synced. Nothing in it is code.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import blake3
from safetensors.torch import load, save
from torch import Tensor

from weightsync.clock import new_write_id
from weightsync.errors import AlreadyExists, Corrupt, NotFound

TENSORS, STATE = "state.safetensors", "state.json"
_NAME = re.compile(r"step-(\d{8,})")
_LARGEST_STATE = 64 << 20


class Numbers:
    """A set of natural numbers as ranges: what a long run has consumed is nearly one range."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """`ranges`: (first, one past the last)."""
        self._ranges = [(int(start), int(stop)) for start, stop in ranges]

    def __contains__(self, number: int) -> bool:
        return any(start <= number < stop for start, stop in self._ranges)

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self._ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numbers) and self._ranges == other._ranges

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Ascending, apart from each other: (first, one past the last)."""
        return tuple(self._ranges)

    def plus(self, numbers: Iterable[int]) -> "Numbers":
        """With `numbers` too."""
        merged: list[tuple[int, int]] = []
        for start, stop in sorted([*self._ranges, *((number, number + 1) for number in numbers)]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
            else:
                merged.append((start, stop))
        return Numbers(merged)


@dataclass(frozen=True)
class Checkpoint:
    """What a trainer needs to go on. `extra` is JSON of the caller, kept as it is."""

    step: int
    consumed: Numbers
    tensors: Mapping[str, Tensor]
    extra: Mapping[str, Any] = field(default_factory=dict)


def write(home: Path, checkpoint: Checkpoint) -> Path:
    """Makes it durable, and gives its directory. Raises `AlreadyExists` where that step has one."""
    place = home / f"step-{checkpoint.step:08d}"
    if place.exists():
        raise AlreadyExists(f"{place} is there already", remedy="a step is saved once; remove it if it is to be made again")
    partial = home / f".{place.name}.{new_write_id()}"
    partial.mkdir(parents=True)
    try:
        data = save({name: tensor.detach().contiguous() for name, tensor in checkpoint.tensors.items()})
        state = {
            "step": checkpoint.step,
            "consumed": checkpoint.consumed.ranges,
            "tensors": {"blake3": blake3.blake3(data).hexdigest(), "bytes": len(data)},
            "extra": checkpoint.extra,
        }
        _write(partial / TENSORS, data)
        _write(partial / STATE, (json.dumps(state, sort_keys=True) + "\n").encode())
        _sync(partial)
        partial.rename(place)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _sync(home)
    return place


def read(place: Path) -> Checkpoint:
    """The checkpoint in the directory `place`. Raises `NotFound`, or `Corrupt` where its bytes are not those that were written."""
    try:
        if (place / STATE).stat().st_size > _LARGEST_STATE:
            raise Corrupt(f"{place / STATE} is larger than any state")
        state = json.loads((place / STATE).read_bytes())
        data = (place / TENSORS).read_bytes()
        found = {"blake3": blake3.blake3(data).hexdigest(), "bytes": len(data)}
        if found != state["tensors"]:
            raise Corrupt(f"{place / TENSORS} is not what was written", remedy="remove this directory; an earlier step serves")
        return Checkpoint(int(state["step"]), Numbers(state["consumed"]), load(data), state["extra"])
    except FileNotFoundError as error:
        raise NotFound(f"{place} holds no checkpoint of the loop: {error.filename} is missing") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{place / STATE} cannot be read: {error}", remedy="remove this directory; an earlier step serves") from error


def places(home: Path) -> list[Path]:
    """All checkpoints under `home`, in the order of their steps."""
    if not home.is_dir():
        return []
    found = [(int(match[1]), path) for path in home.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def newest(home: Path) -> Checkpoint | None:
    """The last one, or None before the first."""
    held = places(home)
    return read(held[-1]) if held else None


def around(home: Path, step: int) -> tuple[Checkpoint | None, Checkpoint | None]:
    """The checkpoints of the step before `step` and of `step`; None where one is not held."""
    before, after = (home / f"step-{number:08d}" for number in (step - 1, step))
    return read(before) if before.is_dir() else None, read(after) if after.is_dir() else None


def prune(home: Path, keep: int) -> None:
    """Removes all but the last `keep`, and what a killed writer left. Only for the one who writes there."""
    for place in places(home)[: -max(1, keep)]:
        # Renamed first: a directory half removed must not look like a checkpoint.
        gone = place.with_name(f".{place.name}.{new_write_id()}")
        place.rename(gone)
    for left in home.glob(".step-*"):
        shutil.rmtree(left, ignore_errors=True)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
