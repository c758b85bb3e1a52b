import pytest

from weightsync.errors import Conflict, Fenced, Invalid, NotFound, Unavailable
from weightsync.format.refs import VersionRef


def move(world, channel, target, expected=None, **more):
    return world.catalog().move(channel, target, expected_sequence=expected, who="op", why="because", **more)


def test_promoting_makes_the_channel(world):
    world.publish(3)
    head = move(world, "serving", 2, 0)
    assert (head.move.sequence, head.move.version, head.move.highest, head.move.epoch) == (1, 2, 3, 0)
    assert (head.move.who, head.move.why) == ("op", "because")
    assert world.catalog().head("serving") == head
    assert head.version == world.ref(2)


def test_a_rollback_is_a_new_higher_sequence(world):
    world.publish(3)
    move(world, "serving", 3)
    head = move(world, "serving", world.ref(1), 1)
    assert (head.move.sequence, head.move.version, head.move.previous.sequence) == (2, 1, 1)
    assert [m.version for m, _ in world.catalog().history(head)] == [1, 3]


def test_rolling_back_latest_fences_the_running_publisher(world):
    claim = world.publish(3)
    head = move(world, "latest", 1)
    assert (head.move.sequence, head.move.epoch, head.move.version, head.move.highest) == (5, 2, 1, 3)
    with pytest.raises(Fenced, match="'op' moved channel 'latest' to version 1"):
        world.commit(world.catalog(), claim)
    again = world.catalog().claim("trainer")
    assert (again.epoch, again.head.version) == (3, world.ref(1))
    after = world.commit(world.catalog(), again)
    assert after.head.move.version == 5  # 4 is void: the fenced publisher's manifest stands
    assert world.record(5).manifest.parent == world.ref(1)
    assert [ref.version for ref in world.catalog().committed()] == [1, 2, 3, 5]


def test_rolling_forward_again(world):
    world.publish(3)
    move(world, "latest", 1)
    assert move(world, "latest", 3).move.version == 3


def test_a_rollback_to_where_latest_is_fences_and_nothing_else(world):
    claim = world.publish(1)
    head = move(world, "latest", 1)
    assert (head.move.version, head.move.epoch) == (1, 2)
    with pytest.raises(Fenced):
        world.commit(world.catalog(), claim)


def test_a_move_that_changes_nothing_is_refused(world):
    world.publish(1)
    move(world, "serving", 1)
    with pytest.raises(Invalid, match="points to version 1 already"):
        move(world, "serving", 1)
    later = int(world.clock.now_s() * 1000) + 1000
    assert move(world, "serving", 1, expires_ms=later).expires_ms == later


def test_the_expected_sequence_must_be_the_one(world):
    world.publish(3)
    move(world, "serving", 1, 0)
    for expected in (0, 2, 99):
        with pytest.raises(Conflict, match="'op' moved channel 'serving' to version 1 with sequence 1"):
            move(world, "serving", 2, expected)
    with pytest.raises(Conflict, match="channel 'canary' does not exist"):
        move(world, "canary", 2, 1)
    with pytest.raises(Conflict, match="'trainer' moved channel 'latest' to version 3 with sequence 4"):
        move(world, "latest", 2, 3)


def test_who_comes_second_is_told_who_was_first(world, monkeypatch):
    world.publish(3)
    move(world, "serving", 1)
    catalog = world.catalog()
    head = catalog.head("serving")
    move(world, "serving", 2)
    monkeypatch.setattr(catalog._reader, "head", _first(head, catalog._reader.head))
    with pytest.raises(Conflict, match="'op' moved channel 'serving' to version 2 with sequence 2"):
        catalog.move("serving", 3, expected_sequence=None, who="slow", why="")


def test_an_operator_who_loses_latest_is_not_fenced_but_beaten(world, monkeypatch):
    world.publish(2)
    catalog = world.catalog()
    head = catalog.head()
    for _ in range(2):
        world.catalog().claim("another")
    monkeypatch.setattr(catalog._reader, "head", _first(head, catalog._reader.head))
    with pytest.raises(Conflict, match="another"):
        catalog.move("latest", 1, expected_sequence=None, who="slow", why="")


def _first(head, after):
    heads = {head.move.channel: head}
    return lambda channel: heads.pop(channel, None) or after(channel)


@pytest.mark.parametrize("target", [0, -1, 4, 10**12])
def test_only_committed_versions_can_be_moved_to(world, target):
    world.publish(3)
    for channel in ("serving", "latest"):
        with pytest.raises(NotFound, match=r"does not exist \(the highest is 3\).*weightsync versions"):
            move(world, channel, target)


def test_a_staged_version_cannot_be_moved_to(world):
    claim = world.publish(1)
    plan = world.staged(world.catalog(), claim)
    with pytest.raises(NotFound):
        move(world, "serving", plan.ref)
    world.commit(world.catalog(), claim)  # 3
    with pytest.raises(NotFound, match="version 2"):
        move(world, "serving", plan.ref)


def test_a_version_with_another_manifest_cannot_be_moved_to(world):
    world.publish(1)
    with pytest.raises(Invalid, match="another manifest"):
        move(world, "serving", VersionRef(1, "0" * 64))


def test_a_version_that_cannot_be_read_cannot_be_moved_to(world):
    world.publish(2)
    world.delete("versions/1/manifest")
    with pytest.raises(Unavailable, match="version 1"):
        move(world, "serving", 1)
    assert world.catalog().head("serving") is None


def test_nothing_can_be_moved_before_anything_was_published(world):
    world.catalog().open_run("tiny")
    with pytest.raises(NotFound, match="nothing was published"):
        move(world, "serving", 1)


def test_what_cannot_be_written_is_refused_before_it_is(world):
    world.publish(1)
    for who, why in (("x" * 5000, ""), ("op", "y" * 5000), ("\ud800", "")):
        with pytest.raises(Invalid, match="cannot be written"):
            world.catalog().move("serving", 1, expected_sequence=0, who=who, why=why)
    assert world.catalog().head("serving") is None


def test_expiry_is_kept_through_claims_and_moves(world):
    later = int(world.clock.now_s() * 1000) + 60_000
    claim = world.commit(world.catalog(), world.publish(1), expires_ms=later)
    assert claim.head.expires_ms == later
    world.catalog().renew("latest", later + 5000)
    assert world.catalog().claim("another").head.expires_ms == later + 5000
    assert move(world, "latest", 1).expires_ms == later + 5000
