"""Directories in memory where the machine has them: what is tested is logic, not a disk's patience."""

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.replica.world import chain
from weightsync.store.memory import MemoryStore

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def place(tmp_path):
    if not SHARED_MEMORY.is_dir():
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(dir=SHARED_MEMORY, prefix="weightsync-test-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def world():
    """Four versions: a snapshot and three deltas."""
    return chain(MemoryStore(), 4)
