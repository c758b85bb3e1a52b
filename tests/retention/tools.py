"""A run with real weights in a memory store, collected with real scratch replicas; time stands still unless told otherwise."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.replica.world import World, random_weights, step
from weightsync.catalog import Catalog
from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import Layout, Tensor, make_layout
from weightsync.replica.fetch import ShardSource
from weightsync.replica.replica import Replica
from weightsync.replica.update import update
from weightsync.retention.collect import Collector, Outcome
from weightsync.retention.policy import Policy
from weightsync.store.memory import MemoryStore
from weightsync.store.retry import RetryPolicy
from weightsync.testing.clock import ManualClock
from weightsync.trust import UNSIGNED
from weightsync.trust import Policy as Trust

RUN = "r"
QUICK = RetryPolicy(attempts=4, base_s=0.001, cap_s=0.01)
HOUR_S = 3600


def tiny_layout() -> Layout:
    """About 6 kB in a handful of chunks."""
    return make_layout([Tensor("w", DTYPES["BF16"], (40, 64)), Tensor("b", DTYPES["F32"], (100,))], chunk_lanes=1024)


@dataclass
class _World(World):
    """With a catalog of ours."""

    catalog_of: Callable[[], Catalog] = field(kw_only=True)

    def __post_init__(self) -> None:
        self.catalog = self.catalog_of()
        self.catalog.open_run("model")
        self.claim = self.catalog.claim("test")


@dataclass
class Bench:
    """One run, its clock, and a way to collect it."""

    home: Path
    clock: ManualClock = field(default_factory=ManualClock)
    trust: Trust = UNSIGNED

    def __post_init__(self) -> None:
        self.store = MemoryStore(str(self.home), clock=self.clock)
        self.layout = tiny_layout()
        self._names = count()
        self.world = _World(self.store, RUN, catalog_of=self.catalog)

    def catalog(self, store: MemoryStore | None = None, trust: Trust | None = None) -> Catalog:
        return Catalog(store or self.store, RUN, policy=trust or self.trust, clock=self.clock, capability="full", patience=QUICK)

    def publish(self, number: int = 1, *, every_s: float = 0.0, snapshot: bool = False, density: float = 0.05) -> None:
        """So many versions more, `every_s` apart."""
        for _ in range(number):
            self.clock.advance(every_s)
            newest = max(self.world.weights, default=0)
            last = self.world.weights.get(newest)
            new = step(self.layout, last, newest + 1, density) if last is not None else random_weights(self.layout, 1)
            self.world.publish(self.layout, new, snapshot=snapshot)

    @contextmanager
    def scratch(self, _nbytes: int = 0) -> Iterator[Replica]:
        with Replica(self.home / f"replica-{next(self._names)}", threads=1) as replica:
            yield replica

    def collector(self, keep: int, *, grace_s: float = 0.0, hourly: int = 0, daily: int = 0, snapshots: bool = True) -> Collector:
        policy = Policy(keep, hourly, daily, int(grace_s * 1000))
        return Collector(self.catalog(), policy, scratch=self.scratch if snapshots else None, threads=1)

    def collect(self, keep: int, *, dry: bool = False, **options) -> Outcome:
        return self.collector(keep, **options).run(dry=dry)

    def rebuilt(self, version: int, store: MemoryStore | None = None) -> bytes:
        """The image of a version, from the store alone. Raises `Compacted` for one that may not be asked for."""
        catalog = self.catalog(store)
        catalog.check_kept(version)
        with self.scratch() as replica:
            update(replica, catalog, catalog.manifest_of(version), ShardSource(catalog))
            return bytes(replica.image.data)

    def is_whole(self, version: int, store: MemoryStore | None = None) -> bool:
        return self.rebuilt(version, store) == self.world.image(version)

    def listed(self, prefix: str = "", store: MemoryStore | None = None) -> list[str]:
        return [stat.key.removeprefix(f"{RUN}/") for stat in (store or self.store).list(f"{RUN}/{prefix}")]

    def nbytes(self, prefix: str = "", store: MemoryStore | None = None) -> int:
        return sum(stat.size_bytes for stat in (store or self.store).list(f"{RUN}/{prefix}"))
