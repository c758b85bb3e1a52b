"""A small run with real layouts, leaves and files, for tests of the catalog."""

from dataclasses import dataclass, field

import numpy as np

from weightsync.catalog import Catalog, Claim, CommitPlan, NewVersion, VersionRecord
from weightsync.format.digests import DigestTable
from weightsync.format.dtypes import dtype_named
from weightsync.format.files import FileTable, NamedFile
from weightsync.format.layout import Layout, Tensor, make_layout
from weightsync.format.refs import Ref, VersionRef
from weightsync.format.root import leaf_digest, root_digest
from weightsync.format.versions import Form, Shard
from weightsync.store.memory import MemoryStore
from weightsync.store.retry import RetryPolicy
from weightsync.store.settle import ensure
from weightsync.testing.clock import ManualClock
from weightsync.trust import UNSIGNED, Policy

RUN = "run"
CONFIG = b'{"model_type":"tiny"}'
LAYOUT = make_layout([Tensor("a", dtype_named("BF16"), (3,)), Tensor("b", dtype_named("F32"), (2, 2))])
PATIENCE = RetryPolicy(attempts=5, deadline_s=60.0)


def table_of(layout: Layout, seed: int) -> DigestTable:
    rng = np.random.default_rng(seed)
    leaves = b"".join(leaf_digest(layout.leaf, rng.bytes(chunk.nbytes)) for chunk in layout.chunks)
    return DigestTable(leaves, rng.integers(0, 1 << 63, len(layout.tensors), dtype=np.uint64))


@dataclass
class World:
    """One store, and any number of catalogs over it."""

    store: MemoryStore = field(default_factory=lambda: MemoryStore("test"))
    policy: Policy = UNSIGNED
    clock: ManualClock = field(default_factory=ManualClock)

    def catalog(self, policy: Policy | None = None, **settings) -> Catalog:
        settings = {"capability": "full", "patience": PATIENCE, "jitter": lambda upper: upper / 2} | settings
        return Catalog(self.store, RUN, policy=policy or self.policy, clock=self.clock, **settings)

    def new_version(self, catalog: Catalog, claim: Claim, **changes) -> tuple[NewVersion, list[tuple[str, bytes]]]:
        """The next version on top of the claim's head, and the objects that it names."""
        number, parent, keys = catalog.next_number(claim), claim.head.version, catalog.keys
        table, shard = table_of(LAYOUT, number), b"frames of %d" % number
        files = FileTable(small=(NamedFile("config.json", Ref.of(CONFIG)),))
        digests, entry = table.to_bytes(LAYOUT), Ref.of(shard)
        new = NewVersion(
            **{
                "number": number,
                "parent": parent,
                "base": parent,
                "form": Form.DELTA if parent else Form.SNAPSHOT,
                "step": number * 10,
                "layout": Ref.of(LAYOUT.to_bytes()),
                "root": root_digest(LAYOUT, table.leaves),
                "digests": Ref.of(digests),
                "files": Ref.of(files.to_bytes()),
                "shards": (Shard(entry.digest, entry.nbytes, 0, 1),),
                "checkpoint_bytes": LAYOUT.nbytes,
                "changed_lanes": 1,
                **changes,
            }
        )
        base = new.base.version if new.base else 0
        objects = [
            (keys.layout(new.layout.digest), LAYOUT.to_bytes()),
            (keys.digests(claim.writer, number, new.digests.digest), digests),
            (keys.file(new.files.digest), files.to_bytes()),
            (keys.file(Ref.of(CONFIG).digest), CONFIG),
            (keys.shard(claim.writer, number, base, entry.digest), shard),
        ]
        return new, objects

    def staged(self, catalog: Catalog, claim: Claim, **changes) -> CommitPlan:
        """A plan all of whose objects stand."""
        new, objects = self.new_version(catalog, claim, **changes)
        plan = catalog.plan_commit(claim, new)
        for key, data in (*objects, *plan.objects):
            ensure(self.store, key, data, clock=self.clock)
        return plan

    def commit(self, catalog: Catalog, claim: Claim, **changes) -> Claim:
        return catalog.finish_commit(claim, self.staged(catalog, claim, **changes))

    def publish(self, count: int, catalog: Catalog | None = None) -> Claim:
        """Claims and commits `count` versions."""
        catalog = catalog or self.catalog()
        catalog.open_run("tiny")
        claim = catalog.claim("trainer")
        for _ in range(count):
            claim = self.commit(catalog, claim)
        return claim

    def record(self, version: int) -> VersionRecord:
        return self.catalog().manifest_of(version)

    def ref(self, version: int) -> VersionRef:
        return self.catalog().find(version)

    def data(self, key: str) -> bytes:
        return self.store.get(f"{RUN}/{key}", max_bytes=1 << 30).data

    def overwrite(self, key: str, data: bytes) -> None:
        self.store.put(f"{RUN}/{key}", data)

    def delete(self, key: str) -> None:
        self.store.delete(f"{RUN}/{key}")

    def reads(self) -> int:
        return sum(operation.name.startswith(("get", "read", "stat")) for operation in self.store.log)
