"""Publishers and subscribers of one run in one store, each with its own directory, as if on hosts of their own."""

from pathlib import Path

import pytest

from tests.memory import in_memory
from tests.publisher.checkpoints import Weights, tree, write
from weightsync.catalog import Catalog
from weightsync.publisher.commit import Settings
from weightsync.publisher.publisher import Publisher
from weightsync.publisher.source import Chunking
from weightsync.replica.fetch import ShardSource
from weightsync.replica.past import NOTHING_PAST, PastLimits
from weightsync.replica.replica import Replica
from weightsync.replica.restore import restore_version
from weightsync.store.api import ObjectStore
from weightsync.store.memory import MemoryStore
from weightsync.store.retry import RetryPolicy
from weightsync.subscriber.follow import Output, Subscriber
from weightsync.subscriber.state import AcceptedFile

QUICK = RetryPolicy(base_s=0.001, cap_s=0.01)
SMALL = Settings(threads=2, shard_bytes=4096, chunking=Chunking(1024), patience=QUICK)


class World:
    """Close it: it closes what it made."""

    def __init__(self, home: Path, store: ObjectStore | None = None) -> None:
        self.home = home
        self.store = store or MemoryStore(str(home))
        self.catalog = self.open_catalog()
        self._made: list[Publisher | Subscriber] = []
        self._checkpoints = 0

    def open_catalog(self) -> Catalog:
        # A probe is a measurement, and injected faults would falsify it.
        capability = "full" if isinstance(self.store, MemoryStore) and self.store.conditional == "full" else None
        return Catalog(self.store, "run", patience=QUICK, capability=capability)

    def publisher(self, name: str = "trainer", settings: Settings = SMALL, past: PastLimits = NOTHING_PAST) -> Publisher:
        catalog = self.open_catalog()
        replica = Replica(self.home / f"base-{name}", threads=1, past=past)
        self._made.append(Publisher(catalog, replica, ShardSource(catalog), who=name, settings=settings))
        return self._made[-1]

    def subscriber(
        self,
        name: str = "host",
        channel: str = "latest",
        outputs: tuple[Output, ...] = (),
        catalog: Catalog | None = None,
        *,
        fixed: int | None = None,
        past: PastLimits = NOTHING_PAST,
    ) -> Subscriber:
        catalog = catalog or self.open_catalog()
        replica = Replica(self.home / f"image-{name}", threads=1, past=past)
        accepted = AcceptedFile(self.home / f"accepted-{name}", "run", channel)
        self._made.append(Subscriber(catalog, replica, ShardSource(catalog), accepted, channel=channel, fixed=fixed, outputs=outputs))
        return self._made[-1]

    def checkpoint(self, weights: Weights, **options) -> Path:
        self._checkpoints += 1
        return write(self.home / f"checkpoint-{self._checkpoints}", weights, **options)

    def restored(self, version: int) -> dict[str, bytes]:
        """All files of a version, from the store alone."""
        out = self.home / f"restored-{version}-{len(list(self.home.glob('restored-*')))}"
        restore_version(self.catalog, self.catalog.manifest_of(version), out, ShardSource(self.catalog), threads=1)
        return tree(out)

    def versions(self) -> list[int]:
        return [ref.version for ref in self.catalog.committed()]

    def close(self) -> None:
        for made in self._made:
            made.close()


@pytest.fixture
def world(tmp_path):
    with in_memory(tmp_path) as home:
        made = World(home)
        yield made
        made.close()
