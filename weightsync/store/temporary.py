"""Files on their way into a store: written and synced under `.tmp`, then linked or renamed to their key.

A process killed meanwhile leaves a file here, which is never listed as an object; the next writer removes it once it is old.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from weightsync.clock import Clock, new_write_id
from weightsync.failpoints import failpoint
from weightsync.store.api import Buffer
from weightsync.store.directories import opened

DIRECTORY = ".tmp"
# A writer that stalls for longer finds its file gone, fails as unavailable, and starts over.
STALE_AFTER_S = 24 * 3600.0
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True)
class Temporary:
    """A complete, durable file without a key yet."""

    directory: int  # descriptor
    name: str
    found: os.stat_result


@contextmanager
def written(root: Path, data: Buffer) -> Iterator[Temporary]:
    """`data` in a new file, synced; whatever is left of it is removed at the end. Raises `OSError`."""
    name = new_write_id()
    with opened(root, [DIRECTORY], make=True) as directory:
        descriptor = os.open(name, _CREATE, 0o666, dir_fd=directory)
        try:
            try:
                _write_all(descriptor, memoryview(data).cast("B"))
                failpoint("store.file.sync")
                os.fdatasync(descriptor)
                found = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            yield Temporary(directory, name, found)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)


def _write_all(descriptor: int, view: memoryview) -> None:
    while view.nbytes:
        failpoint("store.file.write")
        view = view[os.write(descriptor, view) :]


def remove_stale(root: Path, clock: Clock) -> None:
    """Removes files of writers that were killed long ago. Raises `OSError`."""
    with opened(root, [DIRECTORY], make=True) as directory:
        for name in os.listdir(directory):  # noqa: PTH208  pathlib knows no descriptors
            with suppress(FileNotFoundError):
                age_s = clock.now_s() - os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime
                if age_s > STALE_AFTER_S:
                    os.unlink(name, dir_fd=directory)
