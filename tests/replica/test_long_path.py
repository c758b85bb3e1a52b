"""Paths over many versions: the least bytes, in few waits, and against a search that tries everything."""

import numpy as np
import pytest

from benchmarks.brute_force import cheapest, edges
from weightsync.catalog import Catalog, NewPayload, VersionRecord
from weightsync.errors import Compacted, Unavailable
from weightsync.format.refs import Ref, VersionRef
from weightsync.format.versions import Form, Shard
from weightsync.replica.cache import ObjectCache
from weightsync.replica.fetch import ShardSource
from weightsync.replica.path import find_path
from weightsync.store.memory import MemoryStore
from weightsync.testing.tiny_run import TinyRun


class Run:
    """Versions that are records only, with folds and snapshots of random sizes."""

    def __init__(self, versions: int, seed: int, *, extras: int = 0, most: int = 1000) -> None:
        self.store = MemoryStore(f"long-{versions}-{seed}")
        self.catalog = Catalog(self.store, "run", capability="full")
        self.rng = np.random.default_rng(seed)
        run = TinyRun(self.catalog, shard_bytes=lambda: int(self.rng.integers(1, most)))
        run.publish(versions)
        self.refs = {ref.version: ref for ref in self.catalog.committed()}
        for _ in range(extras):
            base, target = sorted(self.rng.choice(versions, 2, replace=False) + 1)
            span = min(int(self.rng.integers(2, 70)), int(target) - 1)
            base = 0 if self.rng.random() < 0.05 else int(target) - span
            self.add(base, int(target), int(self.rng.integers(1, 400 + 300 * max(1, span // 3))))

    def record(self, version: int) -> VersionRecord:
        return self.catalog.manifest_of(version, self.refs[version].manifest)

    def add(self, base: int, target: int, nbytes: int) -> None:
        shard = Shard(Ref.of(b"%d %d %d" % (base, target, nbytes)).digest, nbytes, 0, 0)
        form = Form.FOLD if base else Form.SNAPSHOT
        ref = self.refs[base] if base else None
        self.catalog.add_payload(self.record(target), NewPayload(f"g{self.rng.bytes(8).hex()}", ref, form, (shard,), 1))

    def least(self, have: int, want: int) -> int:
        objects = {stat.key: self.store.get(stat.key, max_bytes=1 << 22).data for stat in self.store.list("run/versions/")}
        return cheapest(edges(objects, "run"), have, want)


@pytest.mark.parametrize("seed", range(4))
def test_the_least_bytes(seed):
    run = Run(150, seed, extras=120)
    drawn = [tuple(sorted(run.rng.choice(150, 2, replace=False) + 1)) for _ in range(12)]
    for have, want in [(0, 150), (1, 150), (0, 1), (149, 150), *drawn]:
        path = find_path(Catalog(run.store, "run"), run.refs.get(int(have)), run.record(int(want)))
        direct = len(path.steps) == 1 and path.steps[0].form is Form.DELTA
        assert path.nbytes == run.least(int(have), int(want)) or direct


def test_few_waits():
    """A chain of 1,000: the store is asked in parallel and no more than a few times for each version."""
    run = Run(1000, 1)
    for version in range(8, 1001, 8):
        run.add(version - 8 or 1, version, 900)
    reader = Catalog(run.store, "run")
    want = run.record(1000)
    before = len(run.store.log)
    path = find_path(reader, run.refs[8], want)
    asked = run.store.log[before:]
    assert len(path.steps) == 124
    assert path.nbytes == run.least(8, 1000)
    names = [op.name for op in asked]
    assert names.count("list") <= 12
    assert names.count("get") <= 1000 + 125 + 125 + 10
    assert names.count("get") >= 1000


def test_who_follows_asks_once():
    run = Run(30, 2, most=100)
    want, reader = run.record(30), Catalog(run.store, "run")
    before = len(run.store.log)
    assert len(find_path(reader, run.refs[29], want).steps) == 1
    assert [op.name for op in run.store.log[before:]] == ["get"]


def test_a_listing_that_shows_nothing_costs_bytes_only(monkeypatch):
    run = Run(40, 3, extras=30)
    want = run.record(40)
    monkeypatch.setattr(MemoryStore, "list", lambda store, prefix: iter(()))
    path = find_path(Catalog(run.store, "run"), run.refs[5], want)
    assert [step.base_version for step in path.steps] == list(range(5, 40))


def test_a_listing_that_shows_only_what_is_of_no_use(monkeypatch):
    """LIST shows a fold from a version that leads nowhere, and not the version's own delta."""
    run = Run(6, 4)
    run.add(3, 6, 1)
    want, listed = run.record(6), MemoryStore.list
    own = {run.catalog.keys.payload(5, 4, "1"), run.catalog.keys.payload(3, 2, "1")}
    monkeypatch.setattr(MemoryStore, "list", lambda store, prefix: (stat for stat in listed(store, prefix) if stat.key not in own))
    path = find_path(Catalog(run.store, "run"), run.refs[2], want)
    assert path.steps[-1].target.version == 6
    assert path.steps[0].base == run.refs[2]


def test_a_record_on_the_way_that_is_gone(monkeypatch):
    run = Run(20, 5)
    run.add(4, 12, 5)
    run.add(2, 16, 10**6)
    run.store.delete(run.catalog.keys.manifest(12))
    path = find_path(Catalog(run.store, "run"), run.refs[2], run.record(20))
    assert [step.base_version for step in path.steps] == [2, 16, 17, 18, 19]
    run.store.delete(run.catalog.keys.manifest(16))
    with pytest.raises((Unavailable, Compacted)):
        find_path(Catalog(run.store, "run"), run.refs[2], run.record(20))


def test_versions_in_reach_cost_nothing():
    run = Run(20, 6)
    near = {run.refs[17], run.refs[3]}
    path = find_path(run.catalog, run.refs[19], run.record(18), near=near)
    assert (path.start, [step.base_version for step in path.steps]) == (run.refs[17], [17])
    assert path.goes_back
    path = find_path(run.catalog, run.refs[19], run.record(17), near=near)
    assert (path.start, path.steps) == (run.refs[17], ())


def test_what_is_in_the_cache_costs_nothing(tmp_path):
    """What an interrupted update has fetched already makes its path the cheapest."""
    run = Run(10, 7)
    run.add(2, 10, 50)
    cache = ObjectCache(tmp_path / "cache", 1 << 20)
    source = ShardSource(run.catalog, cache)
    whole = find_path(run.catalog, run.refs[2], run.record(10), bytes_of=source.bytes_of)
    assert [step.base_version for step in whole.steps] == [2]
    for version in range(3, 11):
        payload = run.catalog.payload(run.record(version), version - 1, "1")
        for shard in payload.shards:
            cache._sizes[shard.digest] = shard.nbytes
    # The leaves of each version passed still count.
    run.add(2, 10, 49 * run.record(10).manifest.digests.nbytes)
    rest = find_path(run.catalog, run.refs[2], run.record(10), avoid=whole.steps, bytes_of=source.bytes_of)
    assert [step.base_version for step in rest.steps] == list(range(2, 10))
    cache.close()


def test_a_version_that_is_not_in_the_history_is_ignored():
    run = Run(10, 8)
    path = find_path(run.catalog, VersionRef(9, "0" * 64), run.record(10))
    assert path.starts_fresh
