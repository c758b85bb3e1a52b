"""Moves made by one process and swapped in by another that holds no key."""

from dataclasses import replace

import pytest

from tests.catalog.test_boundary import once_swapped, write
from tests.catalog.test_signed import OPERATOR, PUBLISHER, signed, with_key  # noqa: F401  a fixture
from weightsync.catalog.values import REPLACED
from weightsync.errors import Compacted, Conflict, Denied, Fenced, Invalid, NotFound
from weightsync.format.envelope import seal
from weightsync.format.refs import Ref
from weightsync.store.memory_faults import Fault
from weightsync.trust import Role


def plan(world, channel="serving", version=2, policy=None, **more):
    more = {"expected_sequence": None, "who": "op", "why": "because"} | more
    return world.catalog(policy).plan_move(channel, version, **more)


def apply(world, made, channel="serving", expected=None):
    return world.catalog().apply_move(
        channel, made.envelope.data, expected_sequence=made.expected_sequence if expected is None else expected
    )


def bent(made, **changes):
    """The same move with other fields, sealed anew: what a caller may send if nothing is signed."""
    move = replace(made.move, **changes)
    return replace(made, move=move, envelope=seal(move.to_body()))


def test_planning_writes_nothing(world):
    world.publish(3)
    before = len(world.store.log)
    plan(world)
    assert {operation.name for operation in world.store.log[before:]} <= {"get", "get_if_changed", "stat"}


def test_what_was_planned_is_what_stands_in_the_store(world):
    world.publish(3)
    made = plan(world)
    head = apply(world, made)
    assert world.catalog().head("serving") == head
    assert (head.move, head.data) == (made.move, made.envelope.data)
    assert world.data(f"channels/serving/log/1-{made.move.write_id}") == made.envelope.data


def test_a_rollback_of_latest_fences_the_publisher(world):
    claim = world.publish(3)
    assert apply(world, plan(world, "latest", 1), "latest").move.epoch == 2
    with pytest.raises(Fenced):
        world.commit(world.catalog(), claim)


def test_doing_it_again_changes_nothing(world):
    world.publish(3)
    made = plan(world)
    first = apply(world, made)
    assert apply(world, made) == first
    world.catalog().move("serving", 3, expected_sequence=1, who="op", why="")
    assert apply(world, made).etag == REPLACED
    assert world.catalog().head("serving").move.sequence == 2


@pytest.mark.parametrize("fault", [Fault.LOST_APPLIED, Fault.LOST_DROPPED, Fault.CONFLICT_409, Fault.PRECONDITION_412])
@pytest.mark.parametrize("key", ["log", "head"])
def test_a_lost_reply_is_settled(world, fault, key):
    world.publish(3)
    made = plan(world)
    world.store.inject(fault, key=key, operation="create")
    assert apply(world, made).move == made.move
    assert [move.sequence for move, _ in world.catalog().history(world.catalog().head("serving"))] == [1]


def test_who_comes_second_is_told_who_was_first(world):
    world.publish(3)
    made = plan(world, version=1, who="slow")
    apply(world, plan(world, who="quick"))
    with pytest.raises(Conflict, match="sequence 0 was expected, but 'quick' moved channel 'serving' to version 2"):
        apply(world, made)


def test_the_expected_sequence_belongs_to_the_move(world):
    world.publish(3)
    with pytest.raises(Invalid, match="sequence 1, which does not follow 4"):
        apply(world, plan(world), expected=4)


def test_a_channel_that_does_not_exist_is_at_zero(world):
    world.publish(3)
    made = plan(world)
    apply(world, made)
    gone = plan(world, version=3)
    world.delete("channels/serving/head")
    with pytest.raises(Conflict, match="channel 'serving' does not exist"):
        apply(world, gone)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epoch": 3}, "has epoch 3"),
        ({"highest": 9}, "the highest version is 9"),
        ({"manifest": Ref("0" * 64, 10)}, "another manifest"),
        ({"who": " "}, "who makes it"),
        ({"run": "other"}, "run 'other'"),
        ({"channel": "canary"}, "channel 'canary'"),
    ],
)
def test_a_move_that_the_catalog_would_not_have_made_is_refused(world, changes, words):
    world.publish(3)
    before = len(world.store.log)
    with pytest.raises(Invalid, match=words):
        apply(world, bent(plan(world), **changes))
    assert not [operation for operation in world.store.log[before:] if operation.name in ("create", "swap", "put")]


def test_a_move_that_follows_another_history_is_refused(world):
    world.publish(3)
    apply(world, plan(world))
    made = plan(world, version=3)
    with pytest.raises(Invalid, match="does not follow move 1"):
        apply(world, bent(made, previous=replace(made.move.previous, digest="0" * 64)))


def test_a_commit_cannot_be_smuggled_in(world):
    """`highest` of `latest` only rises by a publisher's commit."""
    claim = world.publish(2)
    staged = world.staged(world.catalog(), claim)
    with pytest.raises(Invalid, match="epoch"):
        world.catalog().apply_move("latest", staged.envelope.data, expected_sequence=claim.head.move.sequence)
    forged = replace(staged.move, epoch=2)
    with pytest.raises(Invalid, match="the highest version is 3, but it is 2"):
        world.catalog().apply_move("latest", seal(forged.to_body()).data, expected_sequence=claim.head.move.sequence)


def test_a_version_that_was_not_committed(world):
    """2 is void: its manifest stands, and its publisher was fenced before the commit."""
    world.staged(world.catalog(), world.publish(1))
    world.commit(world.catalog(), world.catalog().claim("trainer"))
    assert world.catalog().head().move.version == 3
    with pytest.raises(NotFound, match="version 2"):
        apply(world, bent(plan(world, version=3), version=2))


@pytest.mark.parametrize("record", [b"", b"{}", b"x" * 100, seal(b'{"kind":"move"}').data, seal(b"[1]").data])
def test_what_is_no_move_is_refused(world, record):
    world.publish(1)
    with pytest.raises(Invalid, match="move"):
        world.catalog().apply_move("serving", record, expected_sequence=0)


def test_pointing_where_it_points_is_refused(world):
    world.publish(3)
    apply(world, plan(world))
    with pytest.raises(Invalid, match="points to version 2 already"):
        apply(world, bent(plan(world, version=1), version=2, manifest=world.catalog().head("serving").move.manifest))


def test_a_collected_version_is_refused_before(world):
    world.publish(3)
    made = plan(world)
    write(world, marked=["versions/2"])
    with pytest.raises(Compacted, match="version 2"):
        apply(world, made)
    assert world.catalog().head("serving") is None


def test_a_version_that_is_marked_meanwhile_is_moved_on_from(world):
    world.publish(3)
    made = plan(world)
    once_swapped(world, lambda: write(world, marked=["versions/2"]))
    with pytest.raises(Compacted, match="version 2"):
        apply(world, made)
    assert world.catalog().head("serving").move.version == 3


class TestSigned:
    def test_a_server_without_keys_swaps_in_what_an_operator_signed(self, signed):  # noqa: F811
        made = plan(signed, version=3, policy=with_key(OPERATOR))
        assert apply(signed, made).move.version == 3
        assert signed.catalog().head("serving").data == made.envelope.data

    def test_whoever_has_no_key_cannot_plan(self, signed):  # noqa: F811
        with pytest.raises(Denied, match="operator key"):
            plan(signed, version=3, policy=with_key(PUBLISHER))

    def test_a_stripped_or_foreign_signature_is_refused(self, signed):  # noqa: F811
        made = plan(signed, version=3, policy=with_key(OPERATOR))
        for envelope in (seal(made.envelope.body), with_key(PUBLISHER).seal(made.envelope.body, Role.PUBLISHER)):
            with pytest.raises(Invalid, match="not signed by a trusted operator key"):
                apply(signed, replace(made, envelope=envelope))

    def test_without_a_key_it_cannot_be_moved_on_and_says_so(self, signed):  # noqa: F811
        made = plan(signed, version=3, policy=with_key(OPERATOR))
        once_swapped(signed, lambda: write(signed, marked=["versions/3"]))
        with pytest.raises(Compacted, match="cannot be moved on") as caught:
            apply(signed, made)
        assert "move it to another version" in caught.value.remedy
