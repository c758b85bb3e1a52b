"""From the journal of a change that was marked to what tells the two versions apart, and from that back to the older one."""

from collections.abc import Iterator

from weightsync.codec import gather
from weightsync.format.layout import Layout
from weightsync.replica.flips import Flip, Packed, difference, flip_over, lanes_of, pack
from weightsync.replica.image import Image
from weightsync.replica.journal import Journal, Record
from weightsync.replica.parallel import BATCH_CHUNKS, Workers, batches
from weightsync.replica.past import Pair
from weightsync.replica.transition import Transition


def flips_of(journal: Journal, image: Image, layout: Layout, workers: Workers) -> Iterator[tuple[int, Packed]]:
    """(chunk, packed flip) ascending, of every chunk that differs. `image` holds the newer version, the journal the older values."""
    items = list(journal.by_chunk(image).items())

    def work(part: list[tuple[int, list[Record]]]) -> list[tuple[int, Packed]]:
        found = []
        for number, records in part:
            flip = _flip(journal, records, image, layout, number)
            if flip is not None:
                found.append((number, pack(layout.tensors[layout.chunks[number].tensor].dtype, flip)))
        return found

    # Part by part: what waits to be written stays small.
    size = BATCH_CHUNKS
    for start in range(0, len(items), size):
        run = items[start : start + size]
        share = max(1, -(-len(run) // (4 * workers.threads)))
        for found in workers.map(work, [run[at : at + share] for at in range(0, len(run), share)]):
            yield from found


def go_back(transition: Transition, pairs: list[Pair], workers: Workers) -> None:
    """Makes the image the version that `pairs` lead to, one after the other. Raises `Corrupt` where they do not, `NoSpace`."""
    layout = transition.layout
    changed = {int(number) for pair in pairs for number in pair.chunks}

    def work(numbers: range) -> None:
        for number in numbers:
            if number in changed:
                flips = (pair.flip(layout, number) for pair in pairs)
                transition.flip(number, [flip for flip in flips if flip is not None])

    for _ in workers.map(work, batches(layout)):
        pass


def chunk_at(image: Image, pairs: list[Pair], number: int) -> memoryview:
    """A copy of a chunk as it is in the version that `pairs` lead to from the image's. Raises `Corrupt`."""
    chunk, layout = image.layout.chunks[number], image.layout
    data = bytearray(image.chunk(number))
    lanes = lanes_of(data, layout.tensors[chunk.tensor].dtype.lane_bytes)
    for pair in pairs:
        flip = pair.flip(layout, number)
        if flip is not None:
            flip_over(lanes, flip)
    return memoryview(data)


def _flip(journal: Journal, records: list[Record], image: Image, layout: Layout, number: int) -> Flip | None:
    dtype, view = layout.tensors[layout.chunks[number].tensor].dtype, image.chunk(number)
    changes = journal.changes(records[0]) if len(records) == 1 else None
    if changes is not None:
        positions, old = changes
        return Flip(positions, old ^ gather(view, positions, dtype.lane_bytes))
    before = memoryview(bytearray(view))
    for record in reversed(records):
        journal.put_back(record, before)
    return difference(dtype, before, view)
