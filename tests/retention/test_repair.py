"""Repair: whatever is missing or wrong comes back from who still has it, and nothing wrong is ever written."""

import pytest

from tests.retention.tools import RUN
from weightsync.errors import NotFound
from weightsync.replica.cache import ObjectCache
from weightsync.replica.fetch import ShardSource
from weightsync.replica.update import update
from weightsync.replica.verify import verify_version
from weightsync.retention.copy import Copier
from weightsync.retention.holders import CacheHolder, ReplicaHolder, StoreHolder
from weightsync.retention.repair import Repairer
from weightsync.store.memory import MemoryStore


def objects(store):
    return {stat.key: store.get(stat.key, max_bytes=1 << 30).data for stat in store.list(f"{RUN}/")}


@pytest.fixture
def healthy(bench):
    """A copy of a run of four versions, `serving` on the second."""
    bench.publish(4)
    bench.catalog().move("serving", 2, expected_sequence=None, who="op", why="")
    there = MemoryStore("healthy", clock=bench.clock)
    Copier(bench.catalog(), bench.catalog(there), threads=1).copy()
    return there


def repair(bench, *holders, version=None):
    return Repairer(bench.catalog(), holders, threads=1).repair(version)


def flip(data):
    return data[:-1] + bytes([data[-1] ^ 1])


DAMAGE = {"missing": None, "flipped": flip, "truncated": lambda data: data[: len(data) // 2], "foreign": lambda _: b"{}"}


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_object_comes_back(bench, healthy, damage):
    """One after another, each object of the run is spoilt and repaired."""
    wanted = objects(bench.store)
    for key, data in wanted.items():
        spoil = DAMAGE[damage]
        bench.store.delete(key) if spoil is None else bench.store.put(key, spoil(data))
        done = repair(bench, StoreHolder(healthy))
        assert not done.lost, (key, done.lost)
        assert [brought for brought, _ in done.brought] == [key]
        assert objects(bench.store) == wanted, key


def test_nothing_wrong_costs_nothing(bench, healthy):
    done = repair(bench, StoreHolder(healthy))
    assert (done.brought, done.lost, done.snapshots) == ((), (), ())
    assert done.looked_at > 20


def test_all_at_once(bench, healthy):
    wanted = objects(bench.store)
    for key in wanted:
        bench.store.delete(key)
    done = repair(bench, StoreHolder(healthy))
    assert not done.lost
    assert objects(bench.store) == wanted


def test_a_damaged_holder_is_passed_over(bench, healthy):
    key = f"{RUN}/{bench.listed('shards/1-2-1/')[0]}"
    rotten = MemoryStore("rotten")
    for name, data in objects(healthy).items():
        rotten.create(name, flip(data) if name == key else data)
    bench.store.delete(key)
    assert repair(bench, StoreHolder(rotten)).lost[0][0] == key
    assert key not in objects(bench.store)
    done = repair(bench, StoreHolder(rotten), StoreHolder(healthy))
    assert done.brought == ((key, "mem://healthy"),)


def test_what_nobody_has_is_told(bench):
    bench.publish(3)
    key = f"{RUN}/{bench.listed('shards/1-2-1/')[0]}"
    bench.store.delete(key)
    done = repair(bench)
    assert [what for what, _ in done.lost] == [key, "versions/2", "versions/3"]
    assert bench.is_whole(1)


def test_a_version_alone(bench, healthy):
    for prefix in ("shards/1-2-1/", "shards/1-4-3/"):
        bench.store.delete(f"{RUN}/{bench.listed(prefix)[0]}")
    done = repair(bench, StoreHolder(healthy), version=3)
    assert len(done.brought) == 1
    assert not done.lost
    assert bench.is_whole(3)
    assert not bench.listed("shards/1-4-3/")


def test_shards_come_back_from_a_cache_of_verified_objects(bench, tmp_path):
    bench.publish(3)
    catalog, cache = bench.catalog(), ObjectCache(tmp_path / "cache", 1 << 30)
    with bench.scratch() as replica:
        update(replica, catalog, bench.world.records[3], ShardSource(catalog, cache))
    for key in bench.listed("shards/"):
        bench.store.delete(f"{RUN}/{key}")
    done = repair(bench, CacheHolder(cache, "this host"))
    assert not done.lost
    assert bench.is_whole(3)
    cache.close()


def test_a_replica_gives_layout_and_leaves_and_becomes_a_snapshot(bench):
    bench.publish(4)
    catalog = bench.catalog()
    with bench.scratch() as replica:
        update(replica, catalog, bench.world.records[4], ShardSource(catalog))
        for key in (*bench.listed("shards/1-1-0/"), *bench.listed("layouts/"), *bench.listed("digests/1-4/")):
            bench.store.delete(f"{RUN}/{key}")
        done = repair(bench, ReplicaHolder(replica, catalog.keys))
    assert done.snapshots == (4,)
    assert {key.split("/")[1] for key, _ in done.brought} == {"layouts", "digests"}
    assert {what for what, _ in done.lost if what.startswith("versions/")} == {"versions/1", "versions/2", "versions/3"}
    assert bench.is_whole(4)
    with bench.scratch() as replica:
        found = list(verify_version(bench.catalog(), bench.world.records[4], replica))
    assert not found


def test_a_replica_of_another_version_is_no_proof(bench):
    bench.publish(4)
    catalog = bench.catalog()
    with bench.scratch() as replica:
        update(replica, catalog, bench.world.records[3], ShardSource(catalog))
        bench.store.delete(f"{RUN}/{bench.listed('shards/1-4-3/')[0]}")
        done = repair(bench, ReplicaHolder(replica, catalog.keys))
    assert not done.snapshots
    assert "versions/4" in {what for what, _ in done.lost}


def test_a_head_behind_the_log_is_not_taken(bench, healthy):
    """Going back to it would lose what was acknowledged since."""
    bench.publish(1)
    bench.store.delete(f"{RUN}/channels/latest/head")
    with pytest.raises(NotFound):
        repair(bench, StoreHolder(healthy))
    assert "channels/latest/head" not in bench.listed()


def test_what_is_collected_is_not_brought_back(bench, healthy):
    bench.collect(1)
    before = bench.listed()
    done = repair(bench, StoreHolder(healthy))
    assert not done.lost
    assert [key for key in bench.listed("shards/") if key not in before] == []
    assert bench.listed("versions/1/") == []
