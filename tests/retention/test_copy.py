"""Copies: whole runs and single versions, verified on the way, resumed, signed, kept up to date."""

from dataclasses import dataclass

import pytest

from tests.retention.tools import RUN, Bench
from weightsync.catalog import Catalog
from weightsync.errors import Compacted, Conflict, Corrupt
from weightsync.replica.verify import verify_version
from weightsync.retention.copy import Copied, Copier
from weightsync.store.memory import MemoryStore
from weightsync.store.memory_faults import Crashed, Fault
from weightsync.trust import Policy, Role, SigningKey


@dataclass
class Pair:
    """A run and a place to copy it to."""

    bench: Bench
    there: MemoryStore

    @property
    def target(self) -> Catalog:
        return self.bench.catalog(self.there)

    def copy(self, version: int | None = None) -> Copied:
        return Copier(self.bench.catalog(), self.target, threads=1).copy(version)

    def versions(self) -> list[int]:
        """Versions over there that may be asked for; each must be whole, down to its files."""
        boundary, _ = self.target.boundary()
        refs = [ref for ref in self.target.committed() if boundary is None or not boundary.condemned(ref.version)]
        for ref in refs:
            assert self.bench.is_whole(ref.version, self.there)
            with self.bench.scratch() as replica:
                assert not list(verify_version(self.target, self.target.manifest_of(ref.version), replica))
        return [ref.version for ref in refs]

    def objects(self, store: MemoryStore) -> dict[str, bytes]:
        return {stat.key: store.get(stat.key, max_bytes=1 << 30).data for stat in store.list(f"{RUN}/")}


@pytest.fixture
def pair(bench):
    return Pair(bench, MemoryStore("there", clock=bench.clock))


class TestRun:
    def test_every_object_goes_over_byte_for_byte(self, pair):
        pair.bench.publish(4)
        catalog = pair.bench.catalog()
        catalog.move("serving", 2, expected_sequence=None, who="op", why="")
        catalog.put_pin(3, who="op", why="")
        done = pair.copy()
        assert (done.versions, done.held, done.damaged) == ((1, 2, 3, 4), (), ())
        assert pair.objects(pair.there) == pair.objects(pair.bench.store)
        assert pair.versions() == [1, 2, 3, 4]
        assert pair.target.head("serving").move.version == 2

    def test_again_costs_nothing_and_later_brings_what_is_new(self, pair):
        pair.bench.publish(3)
        pair.copy()
        again = pair.copy()
        assert (again.objects, again.nbytes) == (0, 0)
        pair.bench.publish(2)
        more = pair.copy()
        assert 0 < more.objects < more.present
        assert pair.versions() == [1, 2, 3, 4, 5]
        assert more.sequence == pair.bench.catalog().head().move.sequence

    def test_what_was_collected_is_not_copied_and_stays_collected(self, pair):
        pair.bench.publish(6)
        pair.bench.collect(2, snapshots=False)
        done = pair.copy()
        assert (done.versions, done.held) == ((5, 6), (1, 2, 3, 4))
        assert pair.versions() == [5, 6]
        with pytest.raises(Compacted):
            pair.bench.rebuilt(1, pair.there)

    def test_each_side_may_collect_for_itself(self, pair):
        pair.bench.publish(4)
        pair.copy()
        pair.bench.store, ours = pair.there, pair.bench.store
        pair.bench.collect(1, snapshots=False)
        pair.bench.store = ours
        pair.bench.publish(2)
        assert pair.copy().versions == (4, 5, 6)
        assert pair.versions() == [4, 5, 6]
        assert pair.bench.is_whole(1)

    def test_the_copy_can_be_published_to_when_the_first_is_lost(self, pair):
        pair.bench.publish(3)
        pair.copy()
        world = pair.bench.world
        world.store, world.catalog = pair.there, pair.target
        world.claim = world.catalog.claim("failover")
        pair.bench.publish(2)
        assert pair.versions() == [1, 2, 3, 4, 5]
        assert pair.copy().sequence == pair.target.head().move.sequence  # it is further on, and stays

    def test_two_that_went_their_own_ways_are_not_joined(self, pair):
        pair.bench.publish(3)
        pair.copy()
        pair.target.claim("failover")
        pair.bench.publish(1)
        with pytest.raises(Conflict, match="another way"):
            pair.copy()
        assert pair.target.head().move.who == "failover"

    def test_another_run_of_the_same_name_is_refused(self, pair, tmp_path):
        pair.bench.publish(2)
        other = Bench(tmp_path / "other")
        other.publish(1, density=0.5)
        with pytest.raises(Conflict):
            Copier(pair.bench.catalog(), other.catalog(), threads=1).copy()
        assert other.is_whole(1)

    def test_killed_at_every_write_it_is_no_run_yet_and_goes_on(self, tmp_path):
        bench = Bench(tmp_path)
        bench.publish(2)
        skip = 0
        while True:
            pair = Pair(bench, MemoryStore(f"there-{skip}", clock=bench.clock))
            pair.there.inject(Fault.CRASH_BEFORE if skip % 2 else Fault.CRASH_AFTER, skip=skip)
            try:
                pair.copy()
                break
            except Crashed:
                head = pair.target.head()
                assert head is None or pair.versions() == [1, 2]
            pair.copy()
            assert pair.objects(pair.there) == pair.objects(bench.store)
            skip += 1
        assert skip > 10

    def test_signatures_hold(self, tmp_path):
        key = SigningKey(bytes(32))
        bench = Bench(tmp_path, trust=Policy({Role.PUBLISHER: [key.public]}, key))
        bench.publish(3)
        there = MemoryStore("signed", clock=bench.clock)
        reader = Policy({Role.PUBLISHER: [key.public]})
        Copier(bench.catalog(trust=reader), bench.catalog(there, reader), threads=1).copy()
        assert bench.is_whole(3, there)


class TestDamage:
    def test_nothing_wrong_goes_over_and_it_is_named(self, pair):
        pair.bench.publish(4)
        bad = pair.bench.listed("shards/1-3-2/")[0]
        data = bytearray(pair.bench.store.get(f"{RUN}/{bad}", max_bytes=1 << 20).data)
        data[-1] ^= 1
        pair.bench.store.put(f"{RUN}/{bad}", bytes(data))
        done = pair.copy()
        assert [what for what, _ in done.damaged] == [f"{RUN}/{bad}"]
        assert f"{RUN}/{bad}" not in pair.objects(pair.there)
        assert pair.bench.is_whole(2, pair.there)

    def test_a_missing_object_is_named(self, pair):
        pair.bench.publish(4)
        pair.bench.store.delete(f"{RUN}/{pair.bench.listed('digests/1-4/')[0]}")
        done = pair.copy()
        assert any("digests/1-4" in what or what == "versions/4" for what, _ in done.damaged)
        assert pair.bench.is_whole(3, pair.there)

    def test_a_damaged_object_over_there_is_replaced(self, pair):
        pair.bench.publish(2)
        pair.copy()
        key = f"{RUN}/{pair.bench.listed('shards/1-1-0/')[0]}"
        pair.there.put(key, b"torn")
        assert pair.copy().objects == 1
        assert pair.versions() == [1, 2]

    def test_a_version_that_cannot_be_given_is_not_copied(self, pair):
        pair.bench.publish(3)
        pair.bench.store.delete(f"{RUN}/{pair.bench.listed('shards/1-2-1/')[0]}")
        with pytest.raises(Corrupt, match="version 3"):
            pair.copy(3)
        assert pair.target.head() is None


class TestVersion:
    def test_it_goes_with_its_chain_alone(self, pair):
        pair.bench.publish(6)
        done = pair.copy(3)
        assert (done.versions, done.held) == ((3,), (1, 2))
        assert pair.versions() == [3]
        assert pair.target.head().move.version == 3
        assert not [key for key in pair.objects(pair.there) if "1-4-3" in key or "versions/4" in key]
        for refused in (1, 2):
            with pytest.raises(Compacted):
                pair.bench.rebuilt(refused, pair.there)

    def test_of_several_ways_the_cheapest_goes(self, pair):
        pair.bench.publish(4)
        pair.bench.publish(1, snapshot=True)
        pair.bench.publish(1)
        assert pair.copy(6).held == (5,)
        assert pair.versions() == [6]

    def test_the_next_one_needs_only_what_is_new(self, pair):
        pair.bench.publish(3)
        pair.copy(3)
        pair.bench.publish(3)
        done = pair.copy(6)
        assert (done.versions, done.held) == ((6,), (4, 5))
        assert pair.versions() == [3, 6]
        assert pair.copy(6).objects == 0

    def test_the_rest_can_follow_only_where_it_was_not_given_up(self, pair):
        pair.bench.publish(4)
        pair.copy(3)
        with pytest.raises(Compacted, match="empty place"):
            pair.copy(2)
        assert pair.copy().versions == (3, 4)
        assert pair.versions() == [3, 4]

    def test_what_is_collected_is_refused(self, pair):
        pair.bench.publish(4)
        pair.bench.collect(1, snapshots=False)
        with pytest.raises(Compacted):
            pair.copy(2)

    def test_a_fork_goes_over_as_it_was(self, pair):
        pair.bench.publish(4)
        pair.bench.catalog().move("latest", 2, expected_sequence=None, who="op", why="")
        done = pair.copy(2)
        assert (done.versions, done.held) == ((2,), (1,))
        assert pair.versions() == [2]
