"""Paths, downloads and the cache: the cheapest way, nothing believed unseen, and another way where one is broken."""

import logging
import os
import threading
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.replica import children
from tests.replica.test_kill import AFTER, BEFORE, SMALL
from tests.replica.world import World, chain, frames_between, random_weights, sample_layout, step, table_of
from weightsync.catalog import Catalog
from weightsync.catalog.ways import Ways
from weightsync.clock import SYSTEM
from weightsync.errors import Compacted, Corrupt, NoSpace, Unavailable, WeightsyncError
from weightsync.format.envelope import seal
from weightsync.format.layout import make_layout
from weightsync.format.operators import Boundary
from weightsync.format.refs import Ref, VersionRef
from weightsync.format.shard import pack_shard
from weightsync.format.versions import Form, Payload, Shard
from weightsync.replica.cache import ObjectCache
from weightsync.replica.fetch import MissingShard, ShardSource
from weightsync.replica.path import find_path
from weightsync.replica.replica import Replica
from weightsync.replica.update import update
from weightsync.store.memory import MemoryStore
from weightsync.trust import Role


def add_payload(world: World, version: int, base: int, frames, writer: str = "g0123456789abcdef") -> Payload:
    """A further way to `version`, as a collector would write it."""
    data = pack_shard(frames)
    ref = Ref.of(data)
    world.put(world.catalog.keys.shard(writer, version, base, ref.digest), data)
    payload = Payload(
        run=world.run,
        form=Form.FOLD if base else Form.SNAPSHOT,
        writer=writer,
        target=world.records[version].ref,
        base=world.records[base].ref if base else None,
        shards=(Shard(ref.digest, ref.nbytes, frames[0][0], frames[-1][0]),),
        changed_lanes=0,
        created_ms=0,
    )
    key = world.catalog.keys.payload(version, base, writer)
    world.put(key, world.catalog.policy.seal(payload.to_body(), Role.PUBLISHER).data)
    return payload


def fold(world: World, version: int, base: int) -> Payload:
    return add_payload(world, version, base, frames_between(world.layouts[version], world.weights[base], world.weights[version]))


def snapshot(world: World, version: int) -> Payload:
    return add_payload(world, version, 0, frames_between(world.layouts[version], None, world.weights[version]))


def steps(world: World, have: int | None, want: int, **options) -> list[tuple[int, int]]:
    ref = world.records[have].ref if have else None
    path = find_path(world.catalog, ref, world.records[want], **options)
    assert path.nbytes == sum(p.nbytes + r.manifest.digests.nbytes for p, r in zip(path.steps, path.records, strict=True))
    return [(payload.base_version, payload.target.version) for payload in path.steps]


# ------------------------------------------------------------------------------------------------------------------- paths


def test_paths_over_deltas(world):
    assert steps(world, None, 1) == [(0, 1)]
    assert steps(world, None, 3) == [(0, 1), (1, 2), (2, 3)]
    assert steps(world, 2, 4) == [(2, 3), (3, 4)]
    assert steps(world, 4, 4) == []
    assert steps(world, 4, 2) == [(0, 1), (1, 2)]


def test_a_fold_is_taken_where_it_is_cheaper(world):
    fold(world, 4, 1)
    assert steps(world, 1, 4) == [(1, 4)]
    assert steps(world, None, 4) == [(0, 1), (1, 4)]
    assert steps(world, 2, 4) == [(2, 3), (3, 4)]


def test_a_snapshot_is_taken_where_it_is_cheaper(world):
    snapshot(world, 3)
    assert steps(world, None, 4) == [(0, 3), (3, 4)]
    assert steps(world, 1, 4) == [(1, 2), (2, 3), (3, 4)]
    dense = World(MemoryStore())
    layout = sample_layout()
    for seed in range(4):
        dense.publish(layout, random_weights(layout, seed))
    snapshot(dense, 4)
    assert steps(dense, 1, 4) == [(0, 4)]


def test_a_foreign_version_counts_as_nothing(world):
    path = find_path(world.catalog, VersionRef(2, "0" * 64), world.records[3])
    assert path.starts_fresh
    assert len(path.steps) == 3


def test_a_path_explains_itself(world):
    path = find_path(world.catalog, None, world.records[2])
    assert path.explain().startswith("from nothing: snapshot to 1 (")
    assert ", delta to 2 (" in path.explain()
    assert find_path(world.catalog, world.records[2].ref, world.records[2]).explain() == "version 2 is held already"


def test_versions_that_are_gone_are_walked_around(world):
    snapshot(world, 4)
    world.store.delete(world.catalog.keys.manifest(2))
    assert steps(world, None, 4) == [(0, 4)]
    assert steps(world, 3, 4) == [(3, 4)]
    # What is held needs no manifest any more.
    world.store.delete(world.catalog.keys.manifest(3))
    assert steps(world, 3, 4) == [(3, 4)]


def test_no_path(world):
    world.store.delete(world.catalog.keys.manifest(2))
    with pytest.raises(Unavailable, match="version 2"):
        steps(world, None, 4)
    boundary = Boundary(run="r", write_id="0" * 16, versions=((2, 2),))
    world.store.put(world.catalog.keys.boundary, seal(boundary.to_body()).data)
    with pytest.raises(Compacted, match="version 2"):
        steps(world, 1, 4)


# ----------------------------------------------------------------------------------------------------------------- updates


def test_updates_over_every_pair(world, place):
    fold(world, 4, 2)
    snapshot(world, 3)
    progress: list[tuple[int, int]] = []
    with Replica(place / "r", threads=2) as replica:
        for want in (1, 4, 2, 3, 1, 2, 4, 1, 3, 4):
            done = update(replica, world.catalog, world.records[want], ShardSource(world.catalog), progress=lambda *p: progress.append(p))
            assert replica.version == world.records[want].ref == done.version
            assert bytes(replica.image.data) == world.image(want)
            assert done.bytes_fetched == sum(step.nbytes for step in done.path.steps)
            assert progress[-1] == (done.path.nbytes, done.path.nbytes)
            assert done.seconds.total_s > 0
            assert replica.root == world.records[want].manifest.root
        again = update(replica, world.catalog, world.records[4], ShardSource(world.catalog))
        assert (again.path.steps, again.bytes_fetched) == ((), 0)


def test_a_new_layout_is_reached_through_its_snapshot(world, place):
    other = make_layout(sample_layout().tensors[:4], chunk_lanes=1024)
    weights = random_weights(other, 8)
    world.publish(other, weights)
    world.publish(other, step(other, weights, 9, 0.5))
    with Replica(place / "r", threads=1) as replica:
        for want in (2, 6, 3, 5, 6):
            update(replica, world.catalog, world.records[want], ShardSource(world.catalog))
            assert bytes(replica.image.data) == world.image(want)


def test_a_version_without_changes_moves_no_shards(world, place):
    world.publish(world.layouts[4], world.weights[4])
    with Replica(place / "r", threads=1) as replica:
        update(replica, world.catalog, world.records[4], ShardSource(world.catalog))
        done = update(replica, world.catalog, world.records[5], ShardSource(world.catalog))
        assert (replica.version, done.bytes_fetched) == (world.records[5].ref, 0)


def fails(world: World, replica: Replica, want: int, kind: type[WeightsyncError], match: str, **options) -> None:
    before = replica.version
    with pytest.raises(kind, match=match):
        update(replica, world.catalog, world.records[want], ShardSource(world.catalog, **options))
    assert replica.version == before
    if before:
        assert bytes(replica.image.data) == world.image(before.version)
        assert replica.verify() == []


@pytest.fixture
def at_one(world, place):
    with Replica(place / "r", threads=2) as replica:
        update(replica, world.catalog, world.records[1], ShardSource(world.catalog))
        yield replica


def test_a_flipped_shard_is_named_and_nothing_changes(world, at_one):
    key = world.shard_keys(3)[1]
    data = bytearray(world.store.get(key, max_bytes=1 << 20).data)
    data[20] ^= 4
    world.store.put(key, data)
    fails(world, at_one, 4, Corrupt, key)
    update(at_one, world.catalog, world.records[2], ShardSource(world.catalog))
    assert at_one.version == world.records[2].ref


def test_a_flip_on_the_way_is_read_again(world, at_one):
    class Once:
        """A network that flips a bit in the first answer."""

        def __init__(self, store):
            self.store, self.url, self.flipped = store, store.url, 0

        def read_into(self, key, into, *, start=0):
            self.store.read_into(key, into, start=start)
            if not self.flipped:
                into[5] ^= 1
                self.flipped = 1

        def __getattr__(self, name):
            return getattr(self.store, name)

    world.catalog.store = Once(world.store)
    source = ShardSource(world.catalog)
    done = update(at_one, world.catalog, world.records[2], source)
    assert bytes(at_one.image.data) == world.image(2)
    assert done.bytes_fetched > done.path.steps[0].nbytes
    assert done.avoided == ()


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_another_path_is_taken_around_a_broken_one(world, at_one, damage, caplog):
    caplog.set_level(logging.WARNING)
    fold(world, 4, 1)
    snapshot(world, 4)
    best = find_path(world.catalog, at_one.version, world.records[4]).steps[0]
    key = world.catalog.keys.shard(best.writer, 4, 1, best.shards[0].digest)
    data = world.store.get(key, max_bytes=1 << 20).data
    if damage == "missing":
        world.store.delete(key)
    else:
        world.store.put(key, data[:-1] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    done = update(at_one, world.catalog, world.records[4], ShardSource(world.catalog))
    assert [(p.base_version, p.target.version) for p in done.path.steps] == [(1, 2), (2, 3), (3, 4)]
    assert [payload for payload, _ in done.avoided] == [best]
    assert bytes(at_one.image.data) == world.image(4)
    assert "looking for another path" in caplog.text


def test_a_missing_shard_is_unavailable_and_named(world, at_one):
    key = world.shard_keys(2)[0]
    world.store.delete(key)
    fails(world, at_one, 2, Unavailable, key)


def test_memory_is_not_taken_for_what_is_only_claimed(world, monkeypatch):
    record = world.records[2]
    payload = world.catalog.payload(record, record.manifest.base, record.manifest.writer)
    claimed = replace(payload.shards[0], nbytes=1 << 40)
    with pytest.raises(Corrupt, match="claimed"):
        ShardSource(world.catalog).read(payload, claimed)
    monkeypatch.setattr("weightsync.replica.fetch._CLAIM_BYTES", 1 << 60)
    with pytest.raises(NoSpace, match="no memory for shard"):
        ShardSource(world.catalog).read(payload, replace(claimed, nbytes=1 << 55))
    missing = replace(payload.shards[0], digest="0" * 64)
    monkeypatch.setattr("weightsync.replica.fetch._CLAIM_BYTES", 0)
    with pytest.raises(MissingShard):
        ShardSource(world.catalog).read(payload, missing)


def test_a_store_that_is_down_changes_nothing(world, at_one):
    class Down:
        url = "mem://down"

        def read_into(self, key, into, *, start=0):
            raise Unavailable("the store does not answer")

        def __getattr__(self, name):
            return getattr(world.store, name)

    world.catalog.store = Down()
    fails(world, at_one, 4, Unavailable, "does not answer")


FORGED = {
    "frame for another chunk": lambda frames: [(frames[0][0] + 1, frames[0][1]), *frames[2:]],
    "frame left out": lambda frames: frames[1:],
    "frames exchanged": lambda frames: [(frames[0][0], frames[1][1]), (frames[1][0], frames[0][1]), *frames[2:]],
    "unknown codec": lambda frames: [(frames[0][0], b"\xee"), *frames[1:]],
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED.keys())
def test_a_version_whose_frames_lead_elsewhere(world, at_one, forge):
    """Signed and with matching digests, but wrong: what a publisher with damaged memory would write."""
    weights = step(world.layouts[1], world.weights[1], 77)
    other = World(MemoryStore())
    other.publish(world.layouts[1], world.weights[1])
    frames = forge(frames_between(world.layouts[1], world.weights[1], weights))
    other.publish(world.layouts[1], weights, frames=frames)
    at_one.forget("another run")
    update(at_one, other.catalog, other.records[1], ShardSource(other.catalog))
    fails(other, at_one, 2, Corrupt, "version 2")


def test_shards_that_hold_other_chunks_than_said(world, at_one, monkeypatch):
    payload = fold(world, 4, 1)
    shard = payload.shards[0]
    source = ShardSource(world.catalog)
    lying = Payload(**{**payload.__dict__, "shards": (Shard(shard.digest, shard.nbytes, shard.first + 1, shard.last),)})
    assert lying.shards[0].first > 0
    monkeypatch.setattr(Ways, "into", lambda ways, target, first=None: [lying] if target.version == 4 else [])
    with pytest.raises(Corrupt, match="other chunks than its payload says"):
        update(at_one, world.catalog, world.records[4], source)
    assert bytes(at_one.image.data) == world.image(1)


def test_every_byte_and_every_cut_of_a_small_version(place):
    """One bit of each byte, another one from byte to byte; `tests/e2e/corrupt.py` flips them all."""
    world = World(MemoryStore())
    world.publish(SMALL, BEFORE)
    world.publish(SMALL, AFTER)
    manifest = world.records[2].manifest
    keys = world.catalog.keys
    objects = [*world.shard_keys(2), keys.digests(manifest.writer, 2, manifest.digests.digest), keys.layout(manifest.layout.digest)]
    count = 0
    with Replica(place / "r", threads=1) as replica:
        update(replica, world.catalog, world.records[1], ShardSource(world.catalog))
        for key in objects:
            good = world.store.get(key, max_bytes=1 << 20).data
            flips = (good[:n] + bytes([good[n] ^ (1 << n % 8)]) + good[n + 1 :] for n in range(len(good)))
            for bad in (*flips, *(good[:n] for n in range(len(good)))):
                world.store.put(key, bad)
                fresh = Catalog(world.store, world.run)  # remembers no layout
                with pytest.raises(Corrupt):
                    update(replica, fresh, world.records[2], ShardSource(fresh))
                count += 1
            world.store.put(key, good)
            assert bytes(replica.image.data) == world.image(1)
        assert replica.verify() == []
        update(replica, world.catalog, world.records[2], ShardSource(world.catalog))
        assert bytes(replica.image.data) == world.image(2)
    assert count > 700


def test_memory_damaged_under_a_delta_is_filled_anew(world, at_one):
    """A bit of the image flips after it was verified, in a chunk that the next version changes: the snapshot heals it."""
    number = frames_between(world.layouts[1], world.weights[1], world.weights[2])[0][0]
    at_one.image.data[world.layouts[1].chunks[number].offset] ^= 0x80
    done = update(at_one, world.catalog, world.records[2], ShardSource(world.catalog))
    assert done.path.starts_fresh
    assert bytes(at_one.image.data) == world.image(2)


# -------------------------------------------------------------------------------------------------------------- downloads


def test_downloads_are_parallel_and_bounded(world):
    payload = world.catalog.payload(world.records[1], 0, world.claim.writer)
    sizes = [shard.nbytes for shard in payload.shards]
    assert len(sizes) >= 4
    running, peak, lock, store = set(), [0, 0], threading.Lock(), world.store
    both = threading.Barrier(2)

    class Watching:
        url = "mem://watching"

        def read_into(self, key, into, *, start=0):
            with lock:
                running.add(key)
                peak[0] = max(peak[0], len(running))
                peak[1] = max(peak[1], sum(s.nbytes for s in payload.shards if any(s.digest in k for k in running)))
            if parallel == 2 and window > sum(sizes):
                both.wait(10)
            store.read_into(key, into, start=start)
            with lock:
                running.discard(key)

    world.catalog.store = Watching()
    for parallel, window in ((2, 1 << 30), (8, max(sizes)), (1, 1)):
        peak[:] = [0, 0]
        if len(sizes) % 2 and parallel == 2:
            payload = Payload(**{**payload.__dict__, "shards": payload.shards[:-1]})
        source = ShardSource(world.catalog, parallel=parallel, window_bytes=window)
        found = dict(source.shards(payload))
        assert set(found) == set(payload.shards)
        assert peak[0] == 2 if parallel == 2 else peak[0] <= parallel
        assert peak[1] <= max(window, *sizes)


def test_missing_and_collected_shards(world):
    payload = world.catalog.payload(world.records[2], 1, world.claim.writer)
    world.store.delete(world.shard_keys(2)[0])
    with pytest.raises(MissingShard, match="version 2"):
        list(ShardSource(world.catalog).shards(payload))
    world.catalog.missing = lambda version, what, name="": Compacted(f"{version} {what} {name}")
    with pytest.raises(Compacted, match=r"2 shard '.*' payloads/2/1-1"):
        list(ShardSource(world.catalog).shards(payload))


# ------------------------------------------------------------------------------------------------------------------- cache


@pytest.fixture
def cache(place):
    found = ObjectCache(place / "cache", 1000)
    yield found
    found.close()


def objects(count: int, size: int = 300) -> list[tuple[Ref, bytes]]:
    return [(Ref.of(data), data) for data in (bytes([n]) * size for n in range(count))]


def test_the_cache_keeps_and_verifies(cache, place):
    (ref, data), (other, _) = objects(2)
    assert cache.get(ref) is None
    cache.put(ref, data)
    assert cache.get(ref) == data
    assert cache.get(other) is None
    assert ObjectCache(place / "cache", 1000).get(ref) == data
    assert cache.get(Ref(ref.digest, 299)) is None


@pytest.mark.parametrize("damage", [b"", b"x", b"\0" * 300, b"\0" * 301])
def test_a_damaged_cached_object_is_dropped(cache, place, damage):
    (ref, data) = objects(2)[1]
    cache.put(ref, data)
    (place / "cache" / ref.digest).write_bytes(damage)
    assert cache.get(ref) is None
    assert not (place / "cache" / ref.digest).exists()
    cache.put(ref, data)
    assert cache.get(ref) == data


def test_the_least_recently_used_goes_first(cache, place):
    four = objects(4)
    for ref, data in four[:3]:
        cache.put(ref, data)
    assert cache.get(four[0][0]) is not None
    cache.put(*four[3])
    assert [cache.get(ref) is not None for ref, _ in four] == [True, False, True, True]
    assert cache.nbytes == 900
    assert sum(p.stat().st_size for p in (place / "cache").iterdir()) == 900


def test_what_is_larger_than_the_cache_is_not_kept(cache, place):
    ref, data = objects(1, 1001)[0]
    cache.put(ref, data)
    assert list((place / "cache").iterdir()) == []


def test_a_planted_link_in_the_cache_is_not_followed(cache, place):
    ref, data = objects(1)[0]
    (place / "elsewhere").write_bytes(data)
    (place / "cache" / ref.digest).symlink_to(place / "elsewhere")
    assert cache.get(ref) is None
    assert (place / "elsewhere").read_bytes() == data


def test_files_swapped_while_they_are_read(cache, place):
    """Somebody who writes to the cache without pause can cost a download, never bytes that were not checked."""
    ref, data = objects(2, 900)[1]
    path = place / "cache" / ref.digest

    def attack() -> None:
        good = place / "good"
        while True:
            good.write_bytes(data)
            good.chmod(0o600)
            good.rename(path)
            SYSTEM.sleep_s(0.0005)
            with suppress(FileNotFoundError):
                fd = os.open(path, os.O_RDWR)
                os.pwrite(fd, b"\x02", 450)
                os.pwrite(fd, b"\x01", 450)
                os.ftruncate(fd, 500)
                os.pwrite(fd, data, 0)
                os.close(fd)

    child = children.start(attack)
    outcomes = [0, 0]
    try:
        while min(outcomes) < 20 or sum(outcomes) < 500:
            found = cache.get(ref)
            assert found in (None, data)
            outcomes[found is None] += 1
    finally:
        children.kill(child)


def test_two_processes_may_share_it(cache, place):
    other = ObjectCache(place / "cache", 1000)
    ref, data = objects(1)[0]
    other.put(ref, data)
    assert cache.get(ref) == data
    (place / "cache" / ref.digest).unlink()
    assert other.get(ref) is None


def test_a_damaged_cache_only_costs_a_download(world, place):
    cache = ObjectCache(place / "cache", 1 << 30)
    with Replica(place / "r", threads=1) as replica:
        update(replica, world.catalog, world.records[2], ShardSource(world.catalog, cache))
        replica.forget("again")
        for path in (place / "cache").iterdir():
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        done = update(replica, world.catalog, world.records[2], ShardSource(world.catalog, cache))
        assert (done.bytes_cached, bytes(replica.image.data)) == (0, world.image(2))
        replica.forget("again")
        done = update(replica, world.catalog, world.records[2], ShardSource(world.catalog, cache))
        assert (done.bytes_fetched, bytes(replica.image.data)) == (0, world.image(2))


def test_table_of_is_what_the_catalog_reads(world):
    """The test publisher's own tables are the ones that are read back."""
    table = world.catalog.digests(world.records[2].manifest, world.layouts[2])
    assert table.leaves == table_of(world.layouts[2], world.weights[2]).leaves
    assert chain(MemoryStore(), 1).image(1) == world.image(1)
