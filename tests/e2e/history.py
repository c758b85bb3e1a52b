"""What must hold of a run after anything: one chain of moves, one chain of versions, every one of them there, byte for byte."""

from collections.abc import Callable, Iterable
from pathlib import Path

from tests.publisher.checkpoints import tree
from weightsync.catalog import Catalog
from weightsync.replica.fetch import ShardSource
from weightsync.replica.restore import restore_version


def check(catalog: Catalog, home: Path, expected: Callable[[str], dict[str, bytes]], only: Iterable[int] | None = None) -> dict[int, str]:
    """Notes of all committed versions by number. `expected` maps a note to the files that were published under it."""
    head = catalog.head()
    moves = [move for move, _ in catalog.history(head)]  # each is checked against its successor
    assert [move.sequence for move in moves] == list(range(len(moves), 0, -1))
    epochs = [move.epoch for move in moves]
    assert epochs == sorted(epochs, reverse=True)
    notes, previous = {}, None
    for ref in catalog.committed(head):
        record = catalog.manifest_of(ref.version, ref.manifest)
        assert record.manifest.parent == previous, "a version does not follow the one committed before it"
        previous = ref
        notes[ref.version] = record.manifest.note
        if only is None or ref.version in only:
            out = home / f"check-{ref.version}-{len(list(home.glob('check-*')))}"
            restore_version(catalog, record, out, ShardSource(catalog), threads=1)
            assert tree(out) == expected(record.manifest.note), f"version {ref.version} is not what was published"
    return notes
