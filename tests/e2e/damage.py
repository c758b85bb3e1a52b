"""A small store as it was after each version, and hosts that follow it: what `corrupt` damages, bit by bit."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.publisher.checkpoints import Weights, make, step, tree, write
from tests.publisher.world import QUICK, World
from weightsync.catalog import Catalog
from weightsync.errors import WeightsyncError
from weightsync.replica.fetch import ShardSource
from weightsync.replica.replica import Replica
from weightsync.replica.update import update
from weightsync.replica.verify import verify_version
from weightsync.store.memory import MemoryStore
from weightsync.subscriber.follow import Subscriber
from weightsync.subscriber.outputs import DirectoryOutput
from weightsync.subscriber.state import AcceptedFile
from weightsync.testing.clock import ManualClock

RUN = "run"
Objects = dict[str, bytes]


@dataclass(frozen=True)
class Stage:
    """The store right after `version` was committed, and the checkpoint it was made from."""

    version: int
    objects: Objects
    new: tuple[str, ...]  # keys that came or changed with this version
    files: Objects


def states(seed: int) -> list[Weights]:
    """A snapshot, a sparse step, a dense one, no change, other tensors (a snapshot again), a sparse step."""
    left_out = {"model.router", "model.experts.1.w", "model.experts.10.w"}  # every bit costs a millisecond
    first = {name: value for name, value in make(seed=seed, size=600).items() if name not in left_out}
    second = step(first, seed + 1, 0.02)
    third = step(second, seed + 2, 0.7)
    other = {name: value for name, value in third.items() if not name.startswith(("model.experts", "odd.C"))}
    return [first, second, third, third, other, step(other, seed + 3, 0.05)]


def make_stages(home: Path, seed: int = 7) -> list[Stage]:
    """Publishes them all, with a move of another channel and a boundary among the objects of the last."""
    world, found, before = World(home / "made"), [], Objects()
    publisher = world.publisher()
    weights = states(seed)
    for number, value in enumerate(weights, 1):
        path = write(home / f"checkpoint-{number}", value, shards=2)
        publisher.publish_checkpoint(path, step=number)
        if number == len(weights):
            world.catalog.move("serving", 2, expected_sequence=None, who="operator", why="a test")
            world.catalog.move("serving", 5, expected_sequence=None, who="operator", why="a test")
        objects = dump(world.store)
        found.append(Stage(number, objects, tuple(key for key in objects if before.get(key) != objects[key]), tree(path)))
        before = objects
    world.close()
    return found


def dump(store: MemoryStore) -> Objects:
    """Everything in a store."""
    return {stat.key: store.get(stat.key, max_bytes=1 << 30).data for stat in store.list("")}


def store_of(objects: Objects) -> MemoryStore:
    """A store that holds just these."""
    store = MemoryStore("damaged")
    for key, data in objects.items():
        store.put(key, data)
    return store


class Host:
    """A subscriber with an image and an output directory, and a second image for `verify`. Both are real; only waiting is not.

    Every look is a new subscriber's, over a catalog that has read nothing (`restart`), or that knows layouts and history already.
    """

    def __init__(self, home: Path) -> None:
        self.output = DirectoryOutput(home / "out")
        self.replica = Replica(home / "image", threads=1)
        self.checked = Replica(home / "checked", threads=1)
        self._accepted = AcceptedFile(home / "accepted", RUN, "latest")
        self._home = home
        self._catalog = open_catalog(MemoryStore())

    def restart(self, store: MemoryStore) -> None:
        """Forgets what was read before, but for what lies on disk."""
        self._catalog = open_catalog(store)

    def follow(self) -> int:
        """One look at the channel; the version that is delivered afterwards. Raises what the subscriber raises."""
        catalog = self._catalog
        step = Subscriber(catalog, self.replica, ShardSource(catalog), self._accepted, outputs=[self.output]).step()
        return step.version.version if step.version else 0

    def verify(self) -> list[str]:
        """Kinds of what is found wrong with the run and its newest version, as `weightsync verify` looks at them."""
        catalog = self._catalog
        try:
            catalog.run()
            for channel in ("latest", *catalog.channels()):
                head = catalog.head(channel)
                if head is not None:
                    list(catalog.history(head))
                    catalog.check_logged(head)
            catalog.boundary()
            ref = catalog.committed()[-1]
            record = catalog.manifest_of(ref.version, ref.manifest)
            return [finding.kind for finding in verify_version(catalog, record, self.checked)]
        except WeightsyncError as error:
            return [error.kind]

    def prepare(self) -> None:
        """Brings the image of `verify` to the newest version."""
        catalog = self._catalog
        update(self.checked, catalog, catalog.manifest_of(catalog.committed()[-1].version), ShardSource(catalog))

    def image(self) -> bytes:
        """What is held in memory."""
        return bytes(self.replica.image.data) if self.replica.version else b""

    def delivered(self) -> Objects:
        """What a loader would find."""
        current = self._home / "out" / "current"
        return tree(current) if current.exists() else {}

    def close(self) -> None:
        """Lets go of everything."""
        for part in (self.output, self.replica, self.checked, self._accepted):
            part.close()


def open_catalog(store: MemoryStore) -> Catalog:
    """A reader that remembers nothing and never really waits."""
    return Catalog(store, RUN, patience=QUICK, capability="full", clock=ManualClock())


@contextmanager
def replaced(store: MemoryStore, key: str, data: bytes | None) -> Iterator[None]:
    """The object is another one meanwhile; None: it is gone."""
    was = store.get(key, max_bytes=1 << 30).data
    if data is None:
        store.delete(key)
    else:
        store.put(key, data)
    try:
        yield
    finally:
        store.put(key, was)
        store.log.clear()
