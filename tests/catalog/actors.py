"""Who takes part in a simulation: publishers, operators, a collector, readers. They run the real catalog."""

from dataclasses import dataclass, field

from tests.catalog.baton import Random
from weightsync.catalog import Catalog, Claim, NewVersion
from weightsync.errors import AlreadyExists, Compacted, Conflict, Fenced, Invalid, NotFound, OutcomeUnknown, Unavailable, WeightsyncError
from weightsync.format.envelope import seal
from weightsync.format.operators import Boundary
from weightsync.format.refs import Ref, VersionRef
from weightsync.format.versions import Form, Shard
from weightsync.store.settle import ensure

LOST = (Fenced, Conflict)  # the outcomes that say: certainly not applied
SOMETHING = Ref.of(b"something")  # layout, leaves and files play no part here


@dataclass
class Witness:
    """What actors were told, for the validators."""

    acknowledged: list[tuple[int, str]] = field(default_factory=list)  # (version, manifest digest)
    contents: dict[str, bytes] = field(default_factory=dict)  # manifest digest -> shard content
    claims: list[int] = field(default_factory=list)  # epochs
    won: set[str] = field(default_factory=set)  # write ids of moves whose maker was told that they won
    lost: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    retracted: int = 0
    problems: list[str] = field(default_factory=list)


def shard_prefix(writer: str, version: int, base: int) -> str:
    return f"shards/{writer}-{version}-{base}"


class Publisher:
    """Claims, then commits `count` versions: mostly on top of its own last one, sometimes on an older one."""

    def __init__(self, catalog: Catalog, rng: Random, seen: Witness, who: str, count: int) -> None:
        self._catalog, self._rng, self._seen, self._who, self._count = catalog, rng, seen, who, count

    def __call__(self) -> None:
        claim = self._catalog.claim(self._who)
        self._seen.claims.append(claim.epoch)
        for _ in range(self._count):
            claim = self._commit(claim)

    def _commit(self, claim: Claim) -> Claim:
        parent = claim.head.version
        if parent is not None and self._rng.random() < 0.15:
            parent = self._rng.choice(self._catalog.committed(claim.head))
        while True:
            number = self._catalog.next_number(claim)
            content = self._rng.randbytes(8)
            try:
                return self._try(claim, number, parent, content)
            except AlreadyExists:
                continue  # another publisher took the number: ours is void

    def _try(self, claim: Claim, number: int, parent: VersionRef | None, content: bytes) -> Claim:
        base = parent.version if parent else 0
        ref = Ref.of(content)
        new = NewVersion(
            number=number,
            parent=parent,
            base=parent,
            form=Form.DELTA if parent else Form.SNAPSHOT,
            step=None,
            layout=SOMETHING,
            root=ref.digest,
            digests=SOMETHING,
            files=SOMETHING,
            shards=(Shard(ref.digest, ref.nbytes, 0, 0),),
            checkpoint_bytes=1,
            changed_lanes=1,
        )
        plan = self._catalog.plan_commit(claim, new)
        self._seen.contents[plan.ref.manifest] = content
        objects = [*plan.objects, (self._catalog.keys.shard(claim.writer, number, base, ref.digest), content)]
        self._rng.shuffle(objects)
        for key, data in objects:
            ensure(self._catalog.store, key, data, clock=self._catalog.clock, jitter=lambda upper: self._rng.random() * upper)
        for _ in range(3):
            try:
                claim = self._catalog.finish_commit(claim, plan)
            except OutcomeUnknown:
                continue
            self._seen.acknowledged.append((number, plan.ref.manifest))
            return claim
        raise Unavailable("the publisher gives up")


class Operator:
    """Promotes or rolls back, now and then with what it has seen too long ago."""

    def __init__(self, catalog: Catalog, rng: Random, seen: Witness, channel: str, count: int) -> None:
        self._catalog, self._rng, self._seen, self._channel, self._count = catalog, rng, seen, channel, count

    def __call__(self) -> None:
        for _ in range(20):
            for _ in range(self._rng.randrange(12)):
                self._catalog.clock.sleep_s(0.01)
            self._count -= self._once()
            if self._count == 0:
                return

    def _once(self) -> bool:
        """Whether there was anything to move to."""
        try:
            head = self._catalog.head(self._channel)
            versions = self._catalog.committed()
            if not versions:
                return False
            target = self._rng.choice(versions[-self._rng.choice((1, 2, 100)) :])
            expected = None if self._rng.random() < 0.5 else (head.move.sequence if head else 0)
            self._catalog.move(self._channel, target, expected_sequence=expected, who="operator", why="test")
        except Compacted:
            self._seen.retracted += 1
        except (Conflict, Invalid):
            pass  # somebody was faster, or it points there already
        return True


class Reader:
    """Follows a channel: what it sees never goes back, and can always be read unless it was collected."""

    def __init__(self, catalog: Catalog, seen: Witness, channel: str, looks: int) -> None:
        self._catalog, self._seen, self._channel, self._looks = catalog, seen, channel, looks

    def __call__(self) -> None:
        sequence, etag = 0, ""
        for _ in range(self._looks):
            try:
                head = self._catalog.head_if_changed(self._channel, etag) if etag else self._catalog.head(self._channel)
                if head is None:
                    continue
                if head.move.sequence < sequence:
                    self._seen.problems.append(f"{self._channel} went back from sequence {sequence} to {head.move.sequence}")
                sequence, etag = head.move.sequence, head.etag
                if head.version is not None:
                    record = self._catalog.manifest_of(head.version.version, head.version.manifest)
                    self._catalog.payload(record, record.manifest.base, record.manifest.writer)
            except (Unavailable, Compacted):
                continue


class Collector:
    """Mark, wait, look again, condemn, delete; as small as it can be. The real one is `weightsync.retention`'s."""

    def __init__(self, catalog: Catalog, rng: Random, keep: int, rounds: int) -> None:
        self._catalog, self._rng, self._keep, self._rounds = catalog, rng, keep, rounds

    def __call__(self) -> None:
        for _ in range(10 * self._rounds):
            try:
                self._rounds -= self._round()
            except (Unavailable, Conflict):
                continue
            if self._rounds <= 0:
                return

    def _round(self) -> bool:
        """Whether there was anything to do."""
        before, etag = self._catalog.boundary()
        marks = dict.fromkeys(self._unneeded(), 0)
        if not marks:
            self._catalog.clock.sleep_s(1.0)
            return False
        versions, names = (before.versions, before.names) if before else ((), ())
        etag = self._write(Boundary(self._catalog.keys.run, self._id(), marks, versions, names), etag)
        for _ in range(self._rng.randrange(8)):
            self._catalog.clock.sleep_s(1.0)
        doomed = [name for name in self._unneeded() if name in marks]
        versions += tuple((n, n) for n in (_version(name) for name in doomed) if n)
        names += tuple(name for name in doomed if not _version(name))
        self._write(Boundary(self._catalog.keys.run, self._id(), {}, versions, names), etag)
        for name in doomed:
            self._delete(name)
        return True

    def _unneeded(self) -> list[str]:
        """Names that nothing needs: old versions that no head is on, and shards of fenced publishers that were not committed."""
        head = self._catalog.head()
        if head is None:
            return []
        committed = self._catalog.committed(head)
        other = self._catalog.head("serving")
        kept = {ref.version for ref in committed[-self._keep :]} | {head.move.version} | ({other.move.version} if other else set())
        boundary, _ = self._catalog.boundary()
        gone = [ref.version for ref in committed if boundary is not None and boundary.condemned(ref.version)]
        old = [f"versions/{ref.version}" for ref in committed if ref.version not in kept and ref.version not in gone]
        return old + self._leftovers(head.move.epoch, {ref.version: ref for ref in committed})

    def _leftovers(self, epoch: int, committed: dict[int, VersionRef]) -> list[str]:
        found = set()
        for stat in self._catalog.store.list(self._catalog.keys.shards):
            writer, version, base, _ = self._catalog.keys.parse_shard(stat.key) or ("", 0, 0, "")
            if int(writer) >= epoch:
                continue
            ref = committed.get(version)
            ours = self._catalog.manifest_of(version, ref.manifest).manifest if ref else None
            if ours is None or (ours.writer, ours.base) != (writer, base):
                found.add(shard_prefix(writer, version, base))
        return sorted(found)

    def _delete(self, name: str) -> None:
        version = _version(name)
        prefix = name
        if version:
            manifest = self._catalog.manifest_of(version).manifest
            prefix = shard_prefix(manifest.writer, version, manifest.base)
        for stat in self._catalog.store.list(f"{self._catalog.keys.prefix}{prefix}/"):
            self._catalog.store.delete(stat.key)

    def _write(self, boundary: Boundary, etag: str | None) -> str:
        """Writes, settled by the write id; `Conflict` when another collector was faster."""
        key, data = self._catalog.keys.boundary, seal(boundary.to_body()).data
        store = self._catalog.store
        for _ in range(8):
            try:
                return store.create(key, data) if etag is None else store.swap(key, data, etag)
            except (Unavailable, Conflict):
                now, now_etag = self._catalog.boundary()
                if now is not None and now.write_id == boundary.write_id and now_etag is not None:
                    return now_etag
                if now_etag != etag:
                    raise
        raise Unavailable("the collector gives up")

    def _id(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"


def _version(name: str) -> int:
    kind, _, number = name.partition("/")
    return int(number) if kind == "versions" else 0


EXPECTED = (*LOST, Unavailable, NotFound, Compacted)  # ways in which an actor may end


def is_expected(error: WeightsyncError) -> bool:
    return isinstance(error, EXPECTED)
