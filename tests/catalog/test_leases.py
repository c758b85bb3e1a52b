import pytest

from tests.catalog.test_boundary import write
from weightsync.catalog.leases import holder_of
from weightsync.errors import Compacted, Invalid, NotFound

LATER = 2_000_000_000_000


def test_a_lease_stands_in_the_store(world):
    world.publish(3)
    lease = world.catalog().put_lease("host-1", 2, LATER)
    assert world.catalog().leases() == [lease]
    assert (holder_of(lease), lease.version, lease.expires_ms) == ("host-1", 2, LATER)


def test_a_holder_may_keep_several_versions(world):
    world.publish(3)
    for holder, version in (("a", 1), ("a", 2), ("a--1", 1)):
        world.catalog().put_lease(holder, version, LATER)
    assert {(holder_of(lease), lease.version) for lease in world.catalog().leases()} == {("a", 1), ("a", 2), ("a--1", 1)}


def test_putting_it_again_extends_it(world):
    world.publish(1)
    world.catalog().put_lease("a", 1, LATER)
    world.catalog().put_lease("a", 1, LATER + 1)
    assert [lease.expires_ms for lease in world.catalog().leases()] == [LATER + 1]


def test_giving_it_back_twice_is_fine(world):
    world.publish(1)
    world.catalog().put_lease("a", 1, LATER)
    for _ in range(2):
        world.catalog().drop_lease("a", 1)
    assert world.catalog().leases() == []


def test_only_committed_versions_can_be_kept(world):
    world.publish(1)
    with pytest.raises(NotFound):
        world.catalog().put_lease("a", 2, LATER)
    with pytest.raises(Invalid):
        world.catalog().put_lease("a/b", 1, LATER)


def test_a_collected_version_is_refused_before_and_after(world):
    world.publish(2)
    write(world, condemned=[1])
    with pytest.raises(Compacted):
        world.catalog().put_lease("a", 1, LATER)
    put = world.store.put

    def marked_meanwhile(key, data):
        etag = put(key, data)
        world.store.__dict__.pop("put", None)
        write(world, marked=["versions/2"])
        return etag

    world.store.put = marked_meanwhile
    with pytest.raises(Compacted):
        world.catalog().put_lease("a", 2, LATER)
    assert world.catalog().leases() == []


def test_what_cannot_be_read_is_left_out(world, caplog):
    world.publish(1)
    lease = world.catalog().put_lease("a", 1, LATER)
    world.overwrite("leases/b--1", b"torn")
    world.overwrite("leases/c--1", world.data("leases/a--1"))  # another's, under a false name
    assert world.catalog().leases() == [lease]
    assert "left out" in caplog.text
