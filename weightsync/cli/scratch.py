"""A replica for one command, gone when it ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory

from weightsync.replica.replica import Replica
from weightsync.wiring import SHARED_MEMORY


@contextmanager
def scratch_replica(nbytes: int) -> Iterator[Replica]:
    """An empty replica: in shared memory if that holds two images of `nbytes`, else wherever temporary files go."""
    free = disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    place = SHARED_MEMORY if free > 2 * nbytes else None
    with TemporaryDirectory(prefix="weightsync-", dir=place) as scratch, Replica(Path(scratch) / "replica") as replica:
        yield replica
