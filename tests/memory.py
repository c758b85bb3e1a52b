"""Directories in memory where the machine has them: what is tested there is logic, not a disk's patience."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def in_memory(otherwise: Path) -> Iterator[Path]:
    """An empty directory that is gone when the block ends; `otherwise` where there is no shared memory."""
    if not SHARED_MEMORY.is_dir():
        yield otherwise
        return
    directory = Path(tempfile.mkdtemp(dir=SHARED_MEMORY, prefix="weightsync-test-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
