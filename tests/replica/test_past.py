"""Going back on this host: which versions are in reach, without a byte from the network, and what happens when what is kept is damaged."""

import os
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replica import children
from tests.replica.test_update import fold
from tests.replica.world import World, chain, random_weights, sample_layout, step
from weightsync.errors import Corrupt
from weightsync.format.dtypes import DTYPES
from weightsync.format.versions import Form
from weightsync.replica.fetch import ShardSource
from weightsync.replica.flips import Flip, Packed, difference, flip_over, pack, unpack
from weightsync.replica.past import PastLimits
from weightsync.replica.replica import Replica
from weightsync.replica.update import Update, update
from weightsync.store.memory import MemoryStore

ROOMY = PastLimits(versions=16, image_share=10.0)


@pytest.fixture
def world():
    return chain(MemoryStore(), 6)


def opened(place, limits: PastLimits = ROOMY) -> Replica:
    return Replica(place / "r", threads=2, past=limits)


def go(replica: Replica, world: World, version: int) -> Update:
    done = update(replica, world.catalog, world.records[version], ShardSource(world.catalog))
    assert bytes(replica.image.data) == world.image(version)
    assert replica.version == world.records[version].ref
    assert replica.verify() == []
    return done


def climb(replica: Replica, world: World, *versions: int) -> None:
    for version in versions:
        go(replica, world, version)


def test_back_and_forth_without_the_network(place, world):
    with opened(place) as replica:
        climb(replica, world, 1, 2, 3, 4, 5, 6)
        before = len(world.store.log)
        for version in (1, 6, 3, 4, 2, 6):
            done = go(replica, world, version)
            assert done.bytes_fetched == 0
            assert done.path.steps == ()
            assert done.path.goes_back
        assert len(world.store.log) == before


def test_it_outlives_the_process(place, world):
    with opened(place) as replica:
        climb(replica, world, 1, 2, 3, 4)
        replica.remember()
    with opened(place) as replica:
        before = len(world.store.log)
        go(replica, world, 1)
        assert len(world.store.log) == before


def test_a_process_that_ends_at_once_forgets_its_last_step_only(place, world):
    with opened(place) as replica:
        climb(replica, world, 1, 2, 3)
    with opened(place) as replica:
        assert {ref.version for ref in replica.past.reach(replica.version)} == {3}
        climb(replica, world, 4, 5, 3)


def test_a_jump_over_several_versions_is_one_pair(place, world):
    with opened(place) as replica:
        climb(replica, world, 1, 6)
        replica.remember()
        assert {ref.version for ref in replica.past.reach(replica.version)} == {1, 6}
        assert go(replica, world, 1).bytes_fetched == 0


def test_first_back_then_on(place, world):
    """A fork: the older version is made here, only what is new comes from the store."""
    with opened(place) as replica:
        climb(replica, world, 1, 2, 3, 4, 5, 6)
        layout = world.layouts[3]
        world.records = {number: record for number, record in world.records.items() if number <= 3}
        forked = world.publish(layout, step(layout, world.weights[3], 99))
        assert forked.manifest.parent is not None
        assert forked.manifest.parent.version == 3
        done = go(replica, world, forked.ref.version)
        assert [payload.base_version for payload in done.path.steps] == [3]
        assert done.path.explain().startswith("from version 6: on this host to 3, delta to 7")
        assert done.bytes_fetched == done.path.steps[0].nbytes
        replica.remember()
        assert {ref.version for ref in replica.past.reach(replica.version)} == {1, 2, 3, 4, 5, 6, 7}


def test_versions_and_bytes_are_bounded(place, world):
    with opened(place, PastLimits(versions=2, image_share=10.0)) as replica:
        climb(replica, world, 1, 2, 3, 4, 5, 6)
        replica.remember()
        assert {ref.version for ref in replica.past.reach(replica.version)} == {4, 5, 6}
        assert len(list((place / "r").glob("table-*"))) == 3
    one = max(path.stat().st_size for path in (place / "r").glob("past-*"))
    with opened(place, PastLimits(versions=16, image_share=1.5 * one / world.layouts[1].image_bytes)) as replica:
        replica._trim()
        assert replica.past.nbytes <= 1.5 * one
        climb(replica, world, 1, 2, 3)
    with Replica(place / "r", threads=1) as replica:
        assert list(replica.past) == []
        climb(replica, world, 4)
    assert not list((place / "r").glob("past-*"))


def test_what_cannot_be_reached_any_more_goes(place, world):
    with opened(place) as replica:
        climb(replica, world, 1, 2, 3)
        world.publish(sample_layout(2048), random_weights(sample_layout(2048), 7))
        climb(replica, world, 7)
        replica.remember()
        assert list(replica.past) == []
        assert {path.name.split("-")[0] for path in (place / "r").iterdir()} == {"image", "layout", "lock", "readers", "state", "table"}
        climb(replica, world, 3)


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "table", "swap"])
def test_damage_costs_bytes_only(place, world, damage):
    with opened(place) as replica:
        climb(replica, world, 1, 2, 3, 4)
        replica.remember()
        kept = sorted((place / "r").glob("past-*"))
        if damage == "swap":
            shutil.copyfile(kept[0], place / "other")
    rng = np.random.default_rng(5)
    if damage == "flip":
        data = bytearray(kept[1].read_bytes())
        for _ in range(20):
            data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        kept[1].write_bytes(data)
    elif damage == "cut":
        os.truncate(kept[1], kept[1].stat().st_size - 30)
    elif damage == "missing":
        kept[1].unlink()
    elif damage == "table":
        for table in (place / "r").glob("table-*"):
            if table.name.removeprefix("table-") not in (place / "r" / "state").read_text():
                table.write_bytes(b"no")
    else:
        shutil.copyfile(place / "other", kept[1])
    with opened(place) as replica:
        assert replica.version == world.records[4].ref
        done = go(replica, world, 1)
        assert done.bytes_fetched > 0
        climb(replica, world, 3, 2)


def test_a_flip_that_leads_elsewhere_is_taken_back(place, world):
    """Every byte of the flips in turn: whatever is read from there, the version is right in the end."""
    with opened(place) as replica:
        climb(replica, world, 1, 2)
        replica.remember()
    name = next(iter((place / "r").glob("past-*")))
    whole, fetched = name.read_bytes(), 0
    for at in range(100, len(whole), max(1, len(whole) // 60)):
        shutil.rmtree(place / "copy", ignore_errors=True)
        shutil.copytree(place / "r", place / "copy")
        (place / "copy" / name.name).write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with Replica(place / "copy", threads=1, past=ROOMY) as replica:
            assert replica.version == world.records[2].ref
            fetched += go(replica, world, 1).bytes_fetched > 0
    assert fetched > 40


@pytest.mark.parametrize("point", ["mid_apply", "journal_open", "before_mark", "marked"])
@pytest.mark.parametrize("nth", [1, 2])
def test_kills_on_the_way_back(place, world, point, nth):
    with opened(place) as replica:
        climb(replica, world, 1, 2, 3, 4, 5)
        replica.remember()

    def work() -> None:
        with opened(place) as replica:
            go(replica, world, 2)
            go(replica, world, 4)

    assert children.run(work, f"subscribe.{point}=kill@{nth}") == -9
    with opened(place) as replica:
        version = replica.version
        assert version is not None
        assert version.version in {2, 4, 5}
        assert bytes(replica.image.data) == world.image(version.version)
        before = len(world.store.log)
        climb(replica, world, 1)
        assert len(world.store.log) == before
        climb(replica, world, 6)


def test_a_full_disk_costs_the_way_back_only(place, world, monkeypatch):
    with opened(place) as replica:
        climb(replica, world, 1, 2)
        replica.remember()

        def full(*_):
            raise OSError(28, "no space")

        monkeypatch.setattr("weightsync.replica.past.write_all", full)
        climb(replica, world, 3)
        replica.remember()
        monkeypatch.undo()
        assert {ref.version for ref in replica.past.reach(replica.version)} == {3}
        climb(replica, world, 4)
        assert not list((place / "r").glob(".new-*"))
        replica.remember()
        assert {ref.version for ref in replica.past.reach(replica.version)} == {3, 4}


def test_versions_without_a_change_are_kept_too(place):
    world, layout = World(MemoryStore()), sample_layout()
    weights = random_weights(layout, 1)
    for _ in range(3):
        world.publish(layout, weights)
    with opened(place) as replica:
        climb(replica, world, 1, 2, 3)
        before = len(world.store.log)
        climb(replica, world, 1, 3)
        assert len(world.store.log) == before


def test_folds_are_kept_as_one_pair(place, world):
    fold(world, 5, 1)
    with opened(place) as replica:
        climb(replica, world, 1)
        assert [step.form for step in go(replica, world, 5).path.steps] == [Form.FOLD]
        assert go(replica, world, 1).bytes_fetched == 0


# ------------------------------------------------------------------------------------------------------------------- flips


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(DTYPES)), st.integers(1, 3000), st.floats(0, 1), st.integers(0, 2**32))
def test_flips_lead_both_ways(name, lanes, density, seed):
    dtype, rng = DTYPES[name], np.random.default_rng(seed)
    one = rng.integers(0, 256, lanes * dtype.lane_bytes, np.uint8).view(f"<u{dtype.lane_bytes}")
    other = one.copy()
    moved = rng.random(lanes) < density
    other[moved] += np.array(1, other.dtype)
    flip = difference(dtype, one.data, other.data)
    if flip is None:
        assert np.array_equal(one, other)
        return
    again = unpack(dtype, pack(dtype, flip), lanes)
    for start, end in ((one, other), (other, one)):
        scratch = start.copy()
        flip_over(scratch, again)
        assert np.array_equal(scratch, end)


def test_flips_for_other_chunks_are_refused():
    dtype = DTYPES["BF16"]
    flip = Flip(np.array([1, 5], np.uint32), np.array([1, 2], np.uint16))
    packed = pack(dtype, flip)
    for lanes in (0, 1, 5):
        with pytest.raises(Corrupt):
            unpack(dtype, packed, lanes)
    with pytest.raises(Corrupt):
        unpack(dtype, Packed(1, packed.positions, packed.bits), 10)
    with pytest.raises(Corrupt):
        unpack(dtype, Packed(2, b"", packed.bits), 10)
    with pytest.raises(Corrupt):
        flip_over(np.zeros(5, np.uint16), flip)
