"""Collection on real weights: what goes, what stays, what may still be asked for, and what it costs."""

import pytest

from tests.retention.tools import HOUR_S, Bench
from weightsync.catalog import Catalog, NewPayload, NewVersion
from weightsync.errors import Compacted, Corrupt, Fenced, NotFound, Unavailable
from weightsync.format.refs import Ref
from weightsync.format.versions import Form, Shard
from weightsync.replica.fetch import ShardSource
from weightsync.replica.restore import restore_version
from weightsync.replica.update import update
from weightsync.retention.collect import Collector
from weightsync.retention.policy import Policy
from weightsync.store.memory import MemoryStore
from weightsync.store.memory_faults import Crashed, Fault
from weightsync.testing.clock import ManualClock
from weightsync.trust import Policy as Trust
from weightsync.trust import PublicKey, Role, SigningKey

DAY_S = 24 * HOUR_S


def standing(bench: Bench) -> list[int]:
    """Versions that may be asked for; each of them must be whole."""
    found = []
    for version in bench.world.records:
        try:
            assert bench.is_whole(version), f"version {version} is another"
            found.append(version)
        except Compacted:
            pass
    return found


class TestPolicy:
    def test_keep_alone(self, bench):
        bench.publish(12)
        done = bench.collect(3)
        assert (list(done.kept), done.condemned) == ([10, 11, 12], tuple(range(1, 10)))
        assert standing(bench) == [10, 11, 12]

    def test_what_others_want(self, bench):
        bench.publish(8)
        catalog = bench.catalog()
        catalog.put_pin(2, who="op", why="release")
        catalog.put_lease("host", 4, int((bench.clock.now_s() + 60) * 1000))
        catalog.move("serving", 5, expected_sequence=None, who="op", why="")
        done = bench.collect(1)
        assert done.kept[2] == ("pinned by op: release",)
        assert standing(bench) == [2, 4, 5, 8]
        catalog.drop_pin(2)
        catalog.move("serving", 8, expected_sequence=None, who="op", why="")
        bench.clock.advance(61)
        bench.collect(1)
        assert standing(bench) == [8]

    def test_a_lease_outlives_the_control_plane_by_the_grace_time(self, bench):
        bench.publish(3)
        bench.catalog().put_lease("host", 1, int((bench.clock.now_s() + 60) * 1000))
        bench.clock.advance(60 + HOUR_S - 1)
        assert list(bench.collect(1, grace_s=HOUR_S).kept) == [1, 3]
        bench.clock.advance(2)
        assert list(bench.collect(1, grace_s=HOUR_S).kept) == [3]

    def test_hourly_and_daily(self, bench):
        bench.publish(30, every_s=HOUR_S / 2)
        done = bench.collect(1, hourly=3, daily=1)
        assert len(done.kept) in (3, 4)
        assert standing(bench) == list(done.kept)

    def test_a_rolled_back_head_stays(self, bench):
        bench.publish(6)
        bench.catalog().move("latest", 2, expected_sequence=None, who="op", why="")
        bench.collect(1)
        assert standing(bench) == [2, 6]


class TestGrace:
    def test_marks_wait(self, bench):
        bench.publish(5)
        before = bench.listed()
        first = bench.collect(2, grace_s=DAY_S)
        assert (list(first.waiting), first.condemned, first.objects) == ([1, 2, 3], (), 0)
        assert bench.listed() == sorted([*before, "gc/boundary"])
        bench.clock.advance(DAY_S - 1)
        assert bench.collect(2, grace_s=DAY_S).objects == 0
        bench.clock.advance(2)
        assert bench.collect(2, grace_s=DAY_S).condemned == (1, 2, 3)

    def test_what_is_marked_is_refused_at_once_though_all_of_it_stands(self, bench, tmp_path):
        bench.publish(5)
        bench.collect(2, grace_s=DAY_S)
        catalog = bench.catalog()
        with pytest.raises(Compacted, match=r"version 1 .*newest version, 5"):
            restore_version(catalog, catalog.manifest_of(1), tmp_path / "out", ShardSource(catalog))
        assert not (tmp_path / "out").exists()
        for refused in (
            lambda: catalog.put_pin(1, who="op", why=""),
            lambda: catalog.put_lease("host", 1, 1 << 50),
            lambda: catalog.move("serving", 1, expected_sequence=None, who="op", why=""),
        ):
            with pytest.raises(Compacted):
                refused()
        assert not [key for key in bench.listed() if key.startswith(("pins", "leases", "channels/serving"))]

    def test_a_mark_is_withdrawn_when_the_version_is_wanted_again_and_starts_anew(self, bench):
        bench.publish(5)
        bench.collect(2, grace_s=DAY_S)
        bench.clock.advance(DAY_S)
        assert bench.collect(3, grace_s=DAY_S).withdrawn == ("versions/3",)
        assert standing(bench) == [3, 4, 5]
        bench.clock.advance(DAY_S - 1)
        assert list(bench.collect(2, grace_s=DAY_S).waiting) == [3]
        assert list(bench.collect(2, grace_s=DAY_S).waiting) == [3]

    def test_a_clock_that_goes_back_only_waits_longer(self, bench):
        bench.publish(3)
        bench.collect(1, grace_s=HOUR_S)
        bench.clock.jump(-DAY_S)
        assert bench.collect(1, grace_s=HOUR_S).objects == 0
        assert bench.collect(1, grace_s=0).objects == 0


class TestDry:
    @pytest.mark.parametrize("grace_s", [0, DAY_S])
    def test_it_tells_what_would_be_and_changes_nothing(self, bench, grace_s):
        bench.publish(9)
        bench.catalog().put_pin(4, who="op", why="")
        before = {key: bench.store.get(f"r/{key}", max_bytes=1 << 20).data for key in bench.listed()}
        dry = bench.collect(2, grace_s=grace_s, snapshots=False, dry=True)
        assert {key: bench.store.get(f"r/{key}", max_bytes=1 << 20).data for key in bench.listed()} == before
        real = bench.collect(2, grace_s=grace_s, snapshots=False)
        assert (dry.kept, dry.waiting, dry.condemned, dry.held, dry.objects, dry.nbytes) == (
            real.kept,
            real.waiting,
            real.condemned,
            real.held,
            real.objects,
            real.nbytes,
        )

    def test_a_snapshot_is_foretold(self, bench):
        bench.publish(20)
        dry = bench.collect(2, dry=True)
        real = bench.collect(2)
        assert dry.snapshot is not None
        assert real.snapshot is not None
        assert dry.snapshot[0] == real.snapshot[0] == 19
        assert abs(dry.snapshot[1] - real.snapshot[1]) < real.snapshot[1] / 10


class TestChains:
    def test_what_a_chain_needs_stays_but_is_refused(self, bench):
        bench.publish(6)
        done = bench.collect(2, snapshots=False)
        assert done.held == dict.fromkeys((1, 2, 3, 4), 5)
        assert standing(bench) == [5, 6]
        assert [key for key in bench.listed("shards/") if key.startswith("shards/1-1-0/")]
        assert done.held_bytes > 0
        with pytest.raises(Compacted):
            bench.rebuilt(1)

    def test_what_is_held_goes_when_nobody_needs_it_any_more(self, bench):
        bench.publish(6)
        bench.collect(2, snapshots=False)
        bench.publish(1, snapshot=True)
        bench.publish(1)
        done = bench.collect(2, snapshots=False)
        assert not done.held
        assert standing(bench) == [7, 8]
        assert not [key for key in bench.listed() if key.startswith(("shards/1-1-", "digests/1-1", "versions/5/"))]
        assert bench.catalog().boundary()[0].held == ()

    def test_a_snapshot_is_written_where_it_frees_more_than_it_costs(self, bench):
        bench.publish(20)
        before = bench.nbytes()
        done = bench.collect(3)
        assert done.snapshot is not None
        assert done.snapshot[0] == 18
        assert not done.held
        assert standing(bench) == [18, 19, 20]
        assert bench.nbytes() < before

    def test_none_where_it_does_not(self, bench):
        bench.publish(1)
        bench.publish(3, density=0.0005)
        bench.collect(3)
        assert bench.collect(2).snapshot is None  # the collector's own snapshot of version 2 is good enough
        assert standing(bench) == [3, 4]

    def test_its_own_snapshots_are_not_replaced_at_every_run(self, bench):
        written = 0
        for _ in range(30):
            bench.publish(1, density=0.02)
            written += bench.collect(2).snapshot is not None
        assert written <= 12
        assert standing(bench) == [29, 30]

    def test_without_the_key_none_is_written_and_the_chain_stays(self, tmp_path):
        key, other = SigningKey(bytes(32)), SigningKey(bytes([1]) * 32)
        trusted = {Role.PUBLISHER: [key.public]}
        bench = Bench(tmp_path, trust=Trust(trusted, key))
        bench.publish(20)
        for mine in (None, other):
            done = Collector(bench.catalog(trust=Trust(trusted, mine)), bench.collector(2)._policy, scratch=bench.scratch, threads=1).run()
            assert done.snapshot is None
            assert "publisher key" in done.notes[0]
            assert len(done.held) == 18
        assert standing(bench) == [19, 20]
        assert bench.collect(2).snapshot is not None
        assert standing(bench) == [19, 20]
        assert isinstance(trusted[Role.PUBLISHER][0], PublicKey)

    def test_a_snapshot_that_fails_only_means_that_more_is_kept(self, bench):
        bench.publish(20)
        broken = bench.listed("shards/1-2-1/")[0]
        bench.store.put(f"r/{broken}", b"rot")
        done = bench.collect(3)
        assert done.snapshot is None
        assert set(done.broken) == {18, 19, 20}
        assert bench.listed("shards/1-1-0/")  # it may be repaired yet

    def test_islands(self, bench):
        """A pinned version far behind keeps its own chain, and the newest ones get a snapshot."""
        bench.publish(2)
        bench.catalog().put_pin(2, who="op", why="")
        bench.publish(30)
        done = bench.collect(2)
        assert done.snapshot is not None
        assert done.snapshot[0] == 31
        assert standing(bench) == [2, 31, 32]
        assert set(done.held) <= {1}


class TestReaders:
    def test_one_who_falls_behind_is_told_the_way_on(self, bench):
        bench.publish(4)
        catalog, seen = bench.catalog(), bench.world.records[2]
        with bench.scratch() as replica:
            update(replica, catalog, bench.world.records[1], ShardSource(catalog))
            bench.publish(6)
            bench.collect(2)
            with pytest.raises(Compacted, match="newest version, 10"):
                update(replica, catalog, seen, ShardSource(catalog))
            assert bytes(replica.image.data) == bench.world.image(1)
            update(replica, catalog, bench.world.records[10], ShardSource(catalog))
            assert bytes(replica.image.data) == bench.world.image(10)

    def test_one_in_the_middle_of_a_chain_finds_another(self, bench):
        """The chain it has begun is deleted under it; the snapshot that replaced it is not."""
        bench.publish(20)
        catalog = bench.catalog()
        collected = []

        class Source(ShardSource):
            def read(self, payload, shard):
                if not collected and payload.target.version == 3:
                    collected.append(bench.collect(2))
                return super().read(payload, shard)

        with bench.scratch() as replica:
            update(replica, catalog, bench.world.records[20], Source(catalog))
            assert bytes(replica.image.data) == bench.world.image(20)
        assert collected[0].snapshot is not None

    def test_one_step_behind_the_oldest_may_come_along_by_its_delta(self, bench):
        bench.publish(20)
        catalog = bench.catalog()
        with bench.scratch() as replica:
            update(replica, catalog, bench.world.records[18], ShardSource(catalog))
            bench.collect(2)
            done = update(replica, catalog, bench.world.records[19], ShardSource(catalog))
            assert [step.form for step in done.path.steps] == [Form.DELTA]

    def test_lost_is_not_collected(self, bench):
        """What is held for a chain and missing was lost: the reader hears so, and not that the version is gone."""
        bench.publish(6)
        bench.collect(2, snapshots=False)
        bench.store.delete(f"r/{bench.listed('shards/1-3-2/')[0]}")
        with pytest.raises(Unavailable, match="version 3"):
            bench.rebuilt(6)


class TestWriters:
    def test_a_stalled_publisher_wakes_after_its_slot_was_collected(self, bench):
        """It has uploaded everything but its head move; meanwhile it was fenced, and its objects were swept up."""
        bench.publish(2)
        stalled, claim = bench.catalog(), bench.world.claim
        shard, leaves = b"frames", b"leaves"
        head = claim.head.version
        new = NewVersion(
            number=3, parent=head, base=head, form=Form.DELTA, step=None, root="0" * 64, digests=Ref.of(leaves),
            layout=bench.world.records[2].manifest.layout, files=bench.world.records[2].manifest.files,
            shards=(Shard(Ref.of(shard).digest, len(shard), 0, 0),), checkpoint_bytes=1, changed_lanes=1,
        )  # fmt: skip
        plan = stalled.plan_commit(claim, new)
        keys = stalled.keys
        ours = [
            (keys.shard("1", 3, 2, Ref.of(shard).digest), shard),
            (keys.digests("1", 3, Ref.of(leaves).digest), leaves),
            *plan.objects,
        ]
        for key, data in ours:
            bench.store.create(key, data)
        assert not bench.collect(1).leftovers  # its epoch is the head's: it may still commit
        bench.world.claim = bench.catalog().claim("other")
        done = bench.collect(1)
        assert done.leftovers == ("digests/1-3", "payloads/3/2-1")
        left = [key for key, _ in ours if key.removeprefix("r/") in bench.listed()]
        assert left == [keys.manifest(3), ours[-1][0]]  # above the highest: its number stays taken
        with pytest.raises(Fenced):
            stalled.finish_commit(claim, plan)
        bench.world.records[3], bench.world.weights[3] = bench.world.records[2], bench.world.weights[2]
        bench.publish(1)
        assert max(bench.world.records) == 4
        assert bench.catalog().head().move.version == 4
        bench.collect(1)
        assert "versions/3/manifest" not in bench.listed()
        assert bench.is_whole(4)

    def test_a_payload_for_a_version_that_goes_is_refused_and_taken_back(self, bench):
        bench.publish(5)
        catalog, record = bench.catalog(), bench.world.records[2]
        shard = b"late"
        new = NewPayload("1", None, Form.SNAPSHOT, (Shard(Ref.of(shard).digest, len(shard), 0, 0),), 1)
        bench.store.create(catalog.keys.shard("1", 2, 0, Ref.of(shard).digest), shard)
        create = bench.store.create

        def meanwhile(key, data):
            etag = create(key, data)
            if key.endswith("payloads/0-1") and "/2/" in key:
                bench.collect(1)
            return etag

        bench.store.create = meanwhile
        with pytest.raises(Compacted):
            catalog.add_payload(record, new)
        with pytest.raises(Compacted):
            catalog.add_payload(record, new)
        bench.collect(1)
        assert not [key for key in bench.listed() if "-2-0/" in key or "versions/2/payloads/0-1" in key]

    def test_a_publisher_goes_on_where_its_base_was_given_up(self, tmp_path, bench):
        """An operator moved the head back to a version that the collector had condemned, and died before taking it back."""
        from tests.publisher.checkpoints import make, tree
        from tests.publisher.checkpoints import step as moved
        from tests.publisher.world import World

        world = World(tmp_path / "hosts", bench.store)
        try:
            states = [make(1)]
            with world.publisher() as publisher:
                for number in range(3):
                    publisher.publish_checkpoint(world.checkpoint(states[-1]), step=number)
                    states.append(moved(states[-1], number))
            catalog = world.open_catalog()
            catalog._mover._retractor.check = lambda *_: None
            look = catalog._mover._decide

            def late(*args, **options):
                found = look(*args, **options)
                policy = bench.collector(1)._policy
                Collector(world.open_catalog(), policy, threads=1).run()
                return found

            catalog._mover._decide = late
            catalog.move("latest", 1, expected_sequence=None, who="op", why="and dies")
            boundary, _ = catalog.boundary()
            assert boundary.condemned(1)
            with world.publisher("next") as publisher:
                done = publisher.publish_checkpoint(world.checkpoint(states[-1]), step=9)
            assert done.form is Form.SNAPSHOT
            assert "collected" in " ".join(done.notes)
            wanted = tree(world.checkpoint(states[-1]))
            assert world.restored(done.ref.version) == wanted
        finally:
            world.close()


class TestKilled:
    def test_at_every_write(self, tmp_path):
        """Killed before or after each of its writes, a collector leaves a run that is whole, and the next one ends the work."""
        reference = Bench(tmp_path / "reference")
        reference.publish(7)
        writes = len(self._log(reference, lambda: reference.collect(2)))
        wanted = reference.listed("versions/")
        for skip in range(writes):
            for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
                bench = Bench(tmp_path / f"{skip}-{fault.label}")
                bench.publish(7)
                bench.store.inject(fault, skip=skip)
                with pytest.raises(Crashed):
                    bench.collect(2)
                assert bench.is_whole(6)
                assert bench.is_whole(7)
                again = bench.collect(2)
                assert not again.broken
                bench.collect(2)
                assert self._kept(bench.listed()) == self._kept(wanted), (skip, fault)

    def _log(self, bench, act):
        before = len(bench.store.log)
        act()
        return [o for o in bench.store.log[before:] if o.name in ("create", "swap", "put", "delete")]

    def _kept(self, keys):
        return [key for key in keys if key.startswith("versions/") and "-g" not in key]


class TestDamage:
    def test_nothing_is_collected_where_the_history_breaks(self, bench):
        bench.publish(5)
        log = bench.listed("channels/latest/log/3-")[0]
        bench.store.delete(f"r/{log}")
        before = bench.listed()
        with pytest.raises(Corrupt, match="breaks"):
            bench.collect(1)
        assert bench.listed() == before

    def test_nor_where_a_head_is_damaged(self, bench):
        bench.publish(5)
        bench.catalog().move("serving", 2, expected_sequence=None, who="op", why="")
        bench.store.put("r/channels/serving/head", b"rot")
        with pytest.raises(Corrupt, match="serving"):
            bench.collect(1)

    def test_an_outage_is_no_damage(self, bench):
        bench.publish(5)
        for _ in range(9):
            bench.store.inject(Fault.UNAVAILABLE, operation="get", key="versions/5/payloads")
        with pytest.raises(Unavailable):
            bench.collect(1)

    def test_a_pin_that_cannot_be_read_still_keeps(self, bench):
        bench.publish(5)
        bench.store.put("r/pins/2", b"rot")
        assert list(bench.collect(1).kept) == [2, 5]

    def test_lists_that_show_nothing_lose_nothing(self, bench):
        """LIST may lag: what earlier runs saw is looked for by name, and what is not shown is not deleted."""
        bench.publish(6)
        catalog = bench.catalog()
        catalog.move("serving", 2, expected_sequence=None, who="op", why="")
        catalog.put_pin(3, who="op", why="")
        bench.collect(1, snapshots=False)
        bench.store.list = lambda prefix: iter(())
        done = bench.collect(1, snapshots=False)
        del bench.store.list
        assert list(done.kept) == [2, 3, 6]
        assert standing(bench) == [2, 3, 6]

    def test_no_run(self, bench):
        with pytest.raises(NotFound):
            Collector(Catalog(MemoryStore("none"), "r"), Policy(1), threads=1).run()


def test_late_pins_and_leases_of_condemned_versions_are_swept(bench):
    bench.publish(4)
    catalog = bench.catalog()
    pin, lease = catalog.put_pin(1, who="op", why=""), catalog.put_lease("host", 2, 1)
    data = {key: bench.store.get(f"r/{key}", max_bytes=1 << 20).data for key in ("pins/1", "leases/host--2")}
    catalog.drop_pin(1)
    catalog.drop_lease("host", 2)
    bench.collect(1)
    for key, record in data.items():  # a writer that was killed between writing and looking
        bench.store.put(f"r/{key}", record)
    assert (pin.version, lease.version) == (1, 2)
    bench.collect(1)
    assert not bench.listed("pins/")
    assert not bench.listed("leases/")


def test_five_hundred_versions_leave_a_bucket_of_known_size(bench):
    bench.publish(500, density=0.01)
    world, keep = bench.world, 10
    done = bench.collect(keep)
    assert done.snapshot is not None
    assert standing(bench) == list(range(491, 501))
    # What must be there: a snapshot of the oldest, the records, payloads and leaves of ten versions, the history, one layout and file.
    records = [world.records[n] for n in range(491, 501)]
    own = sum(r.manifest.payload_bytes + r.manifest.digests.nbytes + r.nbytes for r in records) + done.snapshot[1]
    assert bench.nbytes("shards/") + bench.nbytes("digests/") == own - sum(r.nbytes for r in records)
    assert len(bench.listed("versions/")) == 2 * keep + 1
    assert len(bench.listed("channels/")) == 1 + 501
    assert bench.nbytes() < own + 11 * 900 + bench.nbytes("channels/") + bench.nbytes("layouts/") + bench.nbytes("files/") + 2000
    assert isinstance(bench.clock, ManualClock)


def test_nobody_builds_on_a_head_that_is_being_collected(bench):
    """The mover of that head is about to take it back, or died: a delta on it would be lost with its base."""
    bench.publish(3)
    catalog = bench.catalog()
    catalog._mover._retractor.check = lambda *_: None  # it dies before it looks again
    decide = catalog._mover._decide

    def late(*args, **options):
        found = decide(*args, **options)
        bench.collect(1, snapshots=False)
        return found

    catalog._mover._decide = late
    catalog.move("latest", 1, expected_sequence=None, who="op", why="")
    world = bench.world
    for number in (2, 3):
        del world.records[number]
    world.claim = bench.catalog().claim("next")
    with pytest.raises(Compacted, match="version 1"):
        bench.publish(1)
    world.claim = bench.catalog().claim("next")
    bench.publish(1, snapshot=True)
    assert bench.is_whole(max(world.records))
