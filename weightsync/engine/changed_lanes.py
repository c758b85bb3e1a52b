"""Which lanes differ between the version in an image and an older one, from what is kept beside it: lists by tensor."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weightsync.codec import gather
from weightsync.engine.api import TensorChange
from weightsync.engine.change_file import Kind, Part, positions_dtype
from weightsync.format.layout import Chunk, Layout
from weightsync.format.refs import VersionRef
from weightsync.format.sums import weights
from weightsync.replica.flips import difference
from weightsync.replica.image import Image
from weightsync.replica.parallel import BATCH_CHUNKS
from weightsync.replica.past import Pair
from weightsync.replica.remember import chunk_at
from weightsync.replica.replica import Replica

_WHOLE_SHARE = 3  # one lane in so many changed: all of a tensor is less to keep than positions, values and old values
_BLOCK = 1 << 20


def image_bits(layout: Layout, image: Image, number: int) -> NDArray[Any]:
    """All lanes of a tensor as they are in the image: a view that cannot be written to."""
    tensor, start = layout.tensors[number], layout.offsets[number]
    dtype = f"<u{tensor.dtype.lane_bytes}"
    lanes: NDArray[Any] = np.frombuffer(image.data, dtype, tensor.lanes, start) if tensor.lanes else np.empty(0, dtype)
    lanes.flags.writeable = False
    return lanes


def way_to(replica: Replica, base: VersionRef | None) -> list[Pair] | None:
    """The pairs that lead from the version held to `base`; None where none do."""
    held = replica.version
    if base is None or held is None or base not in replica.past.reach(held):
        return None
    return replica.past.way(held, base)


class _Run(NamedTuple):
    """What changed in a chunk; `positions` count from its first lane."""

    chunk: Chunk
    positions: NDArray[np.uint32]
    old: NDArray[Any]
    new: NDArray[Any]


def parts_between(replica: Replica, layout: Layout, pairs: list[Pair]) -> Iterator[Part]:
    """The tensors that differ between the image and the version that `pairs` lead to, ascending. Raises `Corrupt` for damaged pairs."""
    changed = sorted({int(number) for pair in pairs for number in pair.chunks})
    image = replica.image

    def work(numbers: list[int]) -> list[_Run]:
        return [run for number in numbers if (run := _run(image, pairs, number)) is not None]

    def runs() -> Iterator[_Run]:
        for start in range(0, len(changed), BATCH_CHUNKS):
            batch = changed[start : start + BATCH_CHUNKS]
            share = max(1, -(-len(batch) // (4 * replica.workers.threads)))
            for found in replica.workers.map(work, [batch[at : at + share] for at in range(0, len(batch), share)]):
                yield from found

    for number, found in groupby(runs(), lambda run: run.chunk.tensor):
        yield _part(layout, image, number, list(found))


def _run(image: Image, pairs: list[Pair], number: int) -> _Run | None:
    layout = image.layout
    chunk, view = layout.chunks[number], image.chunk(number)
    dtype = layout.tensors[chunk.tensor].dtype
    flip = pairs[0].flip(layout, number) if len(pairs) == 1 else difference(dtype, chunk_at(image, pairs, number), view)
    if flip is None:
        return None
    if flip.positions is None:
        positions = np.flatnonzero(flip.bits).astype(np.uint32)
        bits = flip.bits[positions]
    else:
        positions, bits = flip.positions, flip.bits
    new = gather(view, positions, dtype.lane_bytes)
    return _Run(chunk, positions, new ^ bits, new) if len(positions) else None


def _part(layout: Layout, image: Image, number: int, runs: list[_Run]) -> Part:
    tensor = layout.tensors[number]
    if sum(len(run.positions) for run in runs) * _WHOLE_SHARE > tensor.lanes:
        old = image_bits(layout, image, number).copy()
        for run in runs:
            old[run.positions.astype(np.uint64) + np.uint64(run.chunk.start_lane)] = run.old
        return Part(number, Kind.OLD, old=old)
    dtype = positions_dtype(tensor.lanes)
    positions = np.concatenate([run.positions.astype(dtype) + dtype.type(run.chunk.start_lane) for run in runs])
    values, old = np.concatenate([run.new for run in runs]), np.concatenate([run.old for run in runs])
    return Part(number, Kind.SPARSE, positions, values, old)


def gain(one: TensorChange) -> int:
    """What a tensor's sum gains by a change, mod 2^64; old values that are not known count as 0."""
    total = 0
    for start in range(0, one.lanes, _BLOCK):
        part = slice(start, min(start + _BLOCK, one.lanes))
        place = np.arange(part.start, part.stop, dtype=np.uint64) if one.positions is None else one.positions[part].astype(np.uint64)
        moved = one.values[part].astype(np.uint64)
        if one.old is not None:
            moved -= one.old[part].astype(np.uint64)
        total += int((moved * weights(place)).sum(dtype=np.uint64))
    return total % (1 << 64)
