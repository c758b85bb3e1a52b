import pytest

from tests.memory import in_memory
from tests.replica.world import chain
from weightsync.store.memory import MemoryStore


@pytest.fixture
def place(tmp_path):
    with in_memory(tmp_path) as directory:
        yield directory


@pytest.fixture
def world():
    """Four versions: a snapshot and three deltas."""
    return chain(MemoryStore(), 4)
