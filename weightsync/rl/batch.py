"""Groups of episodes as rows for the learner: one row per segment, sorted by length, padded only to what stands beside it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weightsync.rl.advantages import Credit
from weightsync.rl.mlp import FREE
from weightsync.rl.records import Group, Segment


class Row(NamedTuple):
    """A segment, the credit of its tokens (float32, one each), its region, and its place: (group, episode, segment)."""

    segment: Segment
    advantages: NDArray[np.float32]
    region: str
    place: tuple[int, int, int]


@dataclass(frozen=True)
class Padded:
    """Rows beside each other; all (rows, length - 1), for the token *after* each of `tokens` (rows, length - 1).

    `next`: that token; `made` bool: it was drawn, and is credited; `old`: its log-probability then; `experts`: uint8, or None.
    """

    tokens: Tensor
    next: Tensor
    made: Tensor
    old: Tensor
    advantages: Tensor
    experts: Tensor | None


def rows_of(groups: Sequence[Group], credit: Credit) -> tuple[list[Row], int]:
    """The rows to train on, in the order of the groups, and how many groups teach nothing."""
    rows, silent = [], 0
    for number, group in enumerate(groups):
        credited = credit(group)
        if credited is None:
            silent += 1
            continue
        for at, (episode, parts) in enumerate(zip(group.episodes, credited, strict=True)):
            for part, (segment, advantages) in enumerate(zip(episode.segments, parts, strict=True)):
                if segment.made[1:].any() and np.any(advantages):
                    rows.append(Row(segment, advantages, group.region, (number, at, part)))
    return rows, silent


def padded(rows: Sequence[Row], length: int = 0) -> Padded:
    """`rows` as tensors, padded to the longest, or to `length` tokens if that is more."""
    length = max(length, *(len(row.segment.tokens) for row in rows))

    def stacked(arrays: Sequence[NDArray[np.generic]], fill: int, shift: int) -> Tensor:
        whole = np.full((len(arrays), length - 1, *arrays[0].shape[1:]), fill, arrays[0].dtype)
        for index, array in enumerate(arrays):
            own = array[1:] if shift else array[:-1]
            whole[index, : len(own)] = own
        return torch.from_numpy(whole)

    segments = [row.segment for row in rows]
    tokens = [part.tokens for part in segments]
    routed = [part.experts for part in segments if part.experts is not None]
    return Padded(
        stacked(tokens, 0, 0).long(),
        stacked(tokens, 0, 1).long(),
        stacked([part.made for part in segments], 0, 1),
        stacked([part.logprobs for part in segments], 0, 1),
        stacked([row.advantages for row in rows], 0, 1),
        stacked(routed, FREE, 0) if len(routed) == len(rows) else None,
    )


def batches(rows: Sequence[Row], most_tokens: int) -> Iterator[list[int]]:
    """Indices of `rows`, alike in length, that fill up to `most_tokens` once padded; at least one row each."""
    order = sorted(range(len(rows)), key=lambda index: (len(rows[index].segment.tokens), index))
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * len(rows[index].segment.tokens) > most_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
