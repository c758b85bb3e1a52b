"""Marked and condemned versions: writers look before and after, readers when something is missing."""

import logging

import pytest

from tests.catalog.world import RUN
from weightsync.errors import Compacted, Corrupt, Fenced, OutcomeUnknown, Unavailable
from weightsync.format.envelope import seal
from weightsync.format.operators import Boundary
from weightsync.store.memory_faults import Fault


def write(world, *, marked=(), condemned=(), names=()) -> Boundary:
    boundary = Boundary(RUN, "0" * 16, dict.fromkeys(marked, 1), tuple((n, n) for n in condemned), tuple(names))
    world.overwrite("gc/boundary", seal(boundary.to_body()).data)
    return boundary


def once_swapped(world, then, key="head"):
    """Calls `then` right after the next write of a head."""
    for name in ("swap", "create"):
        original = getattr(world.store, name)

        def struck(at, data, *rest, original=original):
            etag = original(at, data, *rest)
            if at.endswith(key):
                for undo in ("swap", "create"):
                    world.store.__dict__.pop(undo, None)
                then()
            return etag

        setattr(world.store, name, struck)


def move(world, channel, version):
    return world.catalog().move(channel, version, expected_sequence=None, who="op", why="")


def test_the_boundary_is_read(world):
    world.publish(1)
    boundary = write(world, marked=["versions/1"], condemned=[7], names=["payloads/9/0-g1"])
    found, etag = world.catalog().boundary()
    assert found == boundary
    assert etag
    assert found.hit(1)
    assert found.hit(7)
    assert not found.hit(2)
    assert not found.condemned(1)
    assert found.hit_name("payloads/9/0-g1")


@pytest.mark.parametrize("damage", [b"", b"junk", seal(b'{"kind":"boundary"}').data])
def test_a_broken_boundary_stops_writers_and_is_named(world, damage):
    claim = world.publish(2)
    world.overwrite("gc/boundary", damage)
    with pytest.raises(Corrupt, match="gc/boundary"):
        move(world, "serving", 1)
    with pytest.raises(Corrupt, match="gc/boundary"):
        world.commit(world.catalog(), claim)
    assert world.catalog().head("serving") is None


@pytest.mark.parametrize("state", ["marked", "condemned"])
class TestLookBefore:
    def mark(self, world, state, version):
        write(world, **{state: [f"versions/{version}"] if state == "marked" else [version]})

    def test_moves(self, world, state):
        world.publish(3)
        self.mark(world, state, 1)
        before = world.catalog().head()
        for channel in ("serving", "latest"):
            with pytest.raises(Compacted, match=r"version 1 of run 'run'.*newest"):
                move(world, channel, 1)
        assert world.catalog().head() == before
        assert world.catalog().head("serving") is None
        assert move(world, "serving", 2).move.version == 2

    def test_numbers(self, world, state):
        claim = world.publish(1)
        self.mark(world, state, 2)
        assert world.catalog().next_number(claim) == 3

    def test_a_commit_on_an_older_version(self, world, state):
        claim = world.publish(3)
        plan = world.staged(world.catalog(), claim, parent=world.ref(1), base=world.ref(1))
        self.mark(world, state, 1)
        with pytest.raises(Compacted, match="version 1"):
            world.catalog().finish_commit(claim, plan)
        assert world.catalog().head().move.version == 3


class TestLookAfter:
    def test_a_promotion_is_taken_back_by_a_further_move(self, world):
        world.publish(3)
        once_swapped(world, lambda: write(world, condemned=[1]))
        with pytest.raises(Compacted, match="version 1"):
            move(world, "serving", 1)
        head = world.catalog().head("serving")
        assert (head.move.sequence, head.move.version) == (2, 3)
        assert "version 1 is collected" in head.move.why

    def test_a_rollback_of_latest_is_taken_back_and_fences_who_built_on_it(self, world):
        world.publish(3)
        built = []

        def meanwhile():
            built.append(world.catalog().claim("trainer"))
            write(world, marked=["versions/1"])

        once_swapped(world, meanwhile)
        with pytest.raises(Compacted):
            move(world, "latest", 1)
        head = world.catalog().head()
        assert (head.move.version, head.move.highest) == (3, 3)
        with pytest.raises(Fenced):
            world.commit(world.catalog(), built[0])

    def test_who_has_been_overtaken_has_nothing_to_take_back(self, world):
        world.publish(3)

        def meanwhile():
            move(world, "serving", 2)
            write(world, condemned=[1])

        once_swapped(world, meanwhile)
        with pytest.raises(Compacted):
            move(world, "serving", 1)
        assert world.catalog().head("serving").move.version == 2
        assert world.catalog().head("serving").move.sequence == 2

    def test_a_commit_on_a_version_that_is_going_is_taken_back(self, world):
        claim = world.publish(3)
        plan = world.staged(world.catalog(), claim, parent=world.ref(1), base=world.ref(1))
        once_swapped(world, lambda: write(world, marked=["versions/1"]))
        with pytest.raises(Compacted, match="version 1"):
            world.catalog().finish_commit(claim, plan)
        head = world.catalog().head()
        assert (head.move.version, head.move.highest, head.move.epoch) == (3, 4, 2)

    def test_the_version_at_the_head_may_be_built_on_whatever_is_marked_after(self, world):
        """It was kept while it was at the head; once it is not, its own payload is the collector's business."""
        claim = world.publish(3)
        plan = world.staged(world.catalog(), claim)
        once_swapped(world, lambda: write(world, marked=["versions/3"]))
        assert world.catalog().finish_commit(claim, plan).head.move.version == 4

    def test_the_way_on_leads_past_what_is_marked(self, world):
        world.publish(4)
        move(world, "latest", 2)
        once_swapped(world, lambda: write(world, condemned=[1, 2], marked=["versions/4"]))
        with pytest.raises(Compacted):
            move(world, "serving", 1)
        assert world.catalog().head("serving").move.version == 3

    def test_the_way_on_may_be_marked_as_well(self, world):
        """The second look comes after the second move too."""
        world.publish(3)

        def second():
            write(world, condemned=[1, 3])

        def first():
            write(world, condemned=[1])
            once_swapped(world, second)

        once_swapped(world, first)
        with pytest.raises(Compacted):
            move(world, "serving", 1)
        assert world.catalog().head("serving").move.version == 2

    def test_no_way_on_is_said_aloud(self, world, caplog):
        world.publish(1)
        once_swapped(world, lambda: write(world, condemned=[1]))
        with caplog.at_level(logging.ERROR), pytest.raises(Compacted):
            move(world, "serving", 1)
        assert "stays on version 1" in caplog.text

    def test_a_look_that_fails_leaves_the_outcome_open(self, world):
        world.publish(2)

        def meanwhile():
            for _ in range(9):
                world.store.inject(Fault.UNAVAILABLE, operation="get", key="gc/boundary")

        once_swapped(world, meanwhile)
        with pytest.raises(OutcomeUnknown, match="'serving' was moved to version 1"):
            move(world, "serving", 1)


class TestReaders:
    def test_a_collected_version_is_compacted(self, world):
        world.publish(3)
        ref = world.ref(1)
        write(world, condemned=[1])
        world.delete("versions/1/manifest")
        for read in (lambda c: c.manifest_of(1), lambda c: c.manifest_of(1, ref.manifest)):
            with pytest.raises(Compacted, match=r"version 1 of run 'run'.*weightsync versions"):
                read(world.catalog())

    def test_leaves_and_payloads_of_a_collected_version(self, world):
        world.publish(3)
        record, catalog = world.record(1), world.catalog()
        write(world, marked=["versions/1"])
        world.delete("versions/1/payloads/0-1")
        with pytest.raises(Compacted):
            catalog.payloads(record)
        world.delete(f"digests/1-1/{record.manifest.digests.digest}")
        with pytest.raises(Compacted):
            catalog.digests(record.manifest, catalog.layout(record.manifest.layout))

    def test_a_collected_payload_of_a_version_that_stays(self, world):
        world.publish(3)
        write(world, names=["payloads/3/2-1"])
        world.delete("versions/3/payloads/2-1")
        with pytest.raises(Compacted):
            world.catalog().payload(world.record(3), 2, "1")

    def test_what_was_not_collected_is_only_late(self, world):
        world.publish(3)
        write(world, condemned=[1])
        assert isinstance(world.catalog().missing(2, "shard x"), Unavailable)
        assert isinstance(world.catalog().missing(1, "shard x"), Compacted)

    def test_what_stands_is_read_although_it_is_marked(self, world):
        world.publish(3)
        write(world, condemned=[1], marked=["versions/2"])
        assert world.catalog().manifest_of(1).ref.version == 1
        assert len(world.catalog().payloads(world.record(2))) == 1
