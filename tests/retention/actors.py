"""Who takes part in a simulated collection: publishers with whole versions, the real collector, who pins, leases and reads."""

from dataclasses import dataclass, field

from tests.catalog.actors import SOMETHING, Publisher
from tests.catalog.baton import Random
from tests.retention import alive
from weightsync.catalog import Catalog, Claim, NewVersion
from weightsync.clock import Clock
from weightsync.errors import Compacted, Conflict, Corrupt, NotFound, OutcomeUnknown, Unavailable
from weightsync.format.refs import Ref, VersionRef
from weightsync.format.versions import Form, Shard
from weightsync.retention.collect import Collector
from weightsync.retention.policy import Policy
from weightsync.store.settle import ensure


class WholePublisher(Publisher):
    """Versions with leaves and shards of their own; now and then a snapshot. Gives up on a base that is being collected."""

    def __call__(self) -> None:
        self._catalog.open_run("sim")
        super().__call__()

    def _try(self, claim: Claim, number: int, parent: VersionRef | None, content: bytes) -> Claim:
        if self._rng.random() < 0.15:
            return self._commit_on(claim, number, parent, None, content)
        try:
            return self._commit_on(claim, number, parent, parent, content)
        except Compacted:
            self._seen.retracted += 1
            return self._catalog.claim(self._who)

    def _commit_on(self, claim: Claim, number: int, parent: VersionRef | None, base: VersionRef | None, content: bytes) -> Claim:
        catalog, below = self._catalog, base.version if base else 0
        content = content if base else content * 8  # a snapshot is larger
        ref, leaves = Ref.of(content), Ref.of(b"leaves of " + content)
        new = NewVersion(
            number=number,
            parent=parent,
            base=base,
            form=Form.DELTA if base else Form.SNAPSHOT,
            step=None,
            layout=SOMETHING,
            root=ref.digest,
            digests=leaves,
            files=SOMETHING,
            shards=(Shard(ref.digest, ref.nbytes, 0, 0),),
            checkpoint_bytes=1,
            changed_lanes=1,
        )
        plan = catalog.plan_commit(claim, new)
        self._seen.contents[plan.ref.manifest] = content
        objects = [
            *plan.objects,
            (catalog.keys.shard(claim.writer, number, below, ref.digest), content),
            (catalog.keys.digests(claim.writer, number, leaves.digest), b"leaves of " + content),
        ]
        self._rng.shuffle(objects)
        for key, data in objects:
            ensure(catalog.store, key, data, clock=catalog.clock, jitter=lambda upper: self._rng.random() * upper)
        for _ in range(3):
            try:
                claim = catalog.finish_commit(claim, plan)
            except OutcomeUnknown:
                continue
            self._seen.acknowledged.append((number, plan.ref.manifest))
            return claim
        raise Unavailable("the publisher gives up")


@dataclass
class Notes:
    """What went on, and what went wrong."""

    problems: list[str] = field(default_factory=list)
    collections: int = 0
    condemned: int = 0
    deleted: int = 0
    held: int = 0
    leftovers: int = 0
    pins: int = 0
    leases: int = 0
    refused: int = 0
    reads: int = 0


class RealCollector:
    """Collects again and again; another process takes over where one was killed."""

    def __init__(self, catalog: Catalog, kind: type[Collector], rng: Random, notes: Notes, rounds: int) -> None:
        self._catalog, self._kind, self._rng, self._notes, self._rounds = catalog, kind, rng, notes, rounds
        self._policy = Policy(rng.randint(1, 3), grace_ms=rng.choice((0, 0, 200, 3000)))

    def __call__(self) -> None:
        for _ in range(self._rounds):
            self._catalog.clock.sleep_s(self._rng.random() * 2)
            try:
                done = self._kind(self._catalog, self._policy, threads=1).run()
            except (Unavailable, Conflict, NotFound):
                continue
            notes = self._notes
            notes.collections += 1
            notes.condemned += len(done.condemned)
            notes.deleted += done.objects
            notes.held += len(done.held)
            notes.leftovers += len(done.leftovers)
            if done.broken:
                notes.problems.append(f"the collector itself finds versions {done.broken} broken")


class Keeper:
    """Pins or leases a version, sees that it stays whole, and lets go. A version has one pin, whoever wants it: let one keeper pin."""

    def __init__(self, catalog: Catalog, store: alive.Store, rng: Random, notes: Notes, *, kind: str, name: str) -> None:
        self._catalog, self._store, self._rng, self._notes, self._kind, self._name = catalog, store, rng, notes, kind, name

    def __call__(self) -> None:
        for _ in range(6):
            self._catalog.clock.sleep_s(self._rng.random())
            try:
                versions = self._catalog.committed()
                if versions:
                    self._keep(self._rng.choice(versions).version)
            except Compacted:
                self._notes.refused += 1
            except (Unavailable, NotFound):
                continue

    def _keep(self, version: int) -> None:
        if self._kind == "pin":
            self._catalog.put_pin(version, who="keeper", why="test")
            self._notes.pins += 1
        else:
            self._catalog.put_lease(self._name, version, int((self._catalog.clock.now_s() + 10_000) * 1000))
            self._notes.leases += 1
        for _ in range(self._rng.randrange(12)):
            self._catalog.clock.sleep_s(0.05)
            self._look(version)
        if self._kind == "pin":
            self._catalog.drop_pin(version)
        else:
            self._catalog.drop_lease(self._name, version)

    def _look(self, version: int) -> None:
        state = alive.State(self._store)
        if state.condemned(version) or not state.is_alive(version):
            self._notes.problems.append(f"version {version} went although it has a {self._kind}")


class ChainReader:
    """Fetches all that the head's version needs, as a subscriber does. Nobody is stuck: what fails is gone, or there again."""

    def __init__(self, catalog: Catalog, clock: Clock, notes: Notes, channel: str, looks: int) -> None:
        self._catalog, self._clock, self._notes, self._channel, self._looks = catalog, clock, notes, channel, looks

    def __call__(self) -> None:
        for _ in range(self._looks):
            self._clock.sleep_s(0.2)
            try:
                head = self._catalog.head(self._channel)
                if head is not None and head.version is not None:
                    self._read(head.version)
                    self._notes.reads += 1
            except (Unavailable, Compacted):
                continue

    def _read(self, ref: VersionRef) -> None:
        try:
            self._chain(ref, set())
        except Compacted:
            self._notes.refused += 1
            raise
        except Corrupt as error:
            self._notes.problems.append(f"a reader of version {ref.version} met {error}")

    def _chain(self, ref: VersionRef, seen: set[int]) -> None:
        record = self._catalog.manifest_of(ref.version, ref.manifest)
        failures = []
        for payload in self._catalog.payloads(record):
            try:
                for shard in payload.shards:
                    self._shard(payload.writer, ref.version, payload.base_version, shard)
                if payload.base is not None:
                    self._chain(payload.base, {*seen, ref.version})
                return
            except (Compacted, Unavailable) as error:
                failures.append(error)
        raise failures[0]

    def _shard(self, writer: str, version: int, base: int, shard: Shard) -> None:
        try:
            self._catalog.store.get(self._catalog.keys.shard(writer, version, base, shard.digest), max_bytes=shard.nbytes)
        except NotFound:
            raise self._catalog.missing(version, "a shard", f"payloads/{version}/{base}-{writer}") from None
