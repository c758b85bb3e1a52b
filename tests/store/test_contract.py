"""Every backend against the same contract."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from weightsync.clock import new_write_id
from weightsync.store.api import ObjectStore
from weightsync.store.file import FileStore
from weightsync.store.memory import MemoryStore
from weightsync.store.open import open_store
from weightsync.testing.s3_server import S3Server
from weightsync.testing.store_contract import ObjectStoreContract


class TestFile(ObjectStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return FileStore(tmp_path / "store")


class TestMemory(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryStore()


@pytest.mark.s3
@pytest.mark.usefixtures("credentials", "small_parts")
class TestS3(ObjectStoreContract):
    large_bytes = (10 << 20) + 1_000_003

    @pytest.fixture
    def store(self, server: S3Server) -> Iterator[ObjectStore]:
        store = open_store(server.url(new_write_id()))
        yield store
        store.close()
