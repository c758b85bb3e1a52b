"""A trainer that goes back: a new epoch, a parent that is older, numbers that go on; and those who were ahead move over."""

import pytest

from tests.publisher.checkpoints import make, step
from tests.publisher.world import World
from weightsync.errors import Fenced, Invalid, NotFound
from weightsync.format.versions import Form
from weightsync.replica.past import PastLimits

ROOMY = PastLimits(image_share=10.0)


@pytest.fixture
def states(world):
    """Six versions, and their checkpoints."""
    weights, found = make(), {}
    publisher = world.publisher(past=ROOMY)
    for version in range(1, 7):
        found[version] = world.checkpoint(weights)
        publisher.publish_checkpoint(found[version], step=version)
        weights = step(weights, version)
    publisher.settle(30)
    publisher.close()
    return found


def forked(world: World, parent: int, seed: int = 99) -> dict:
    weights = make()
    for version in range(1, parent):
        weights = step(weights, version)
    return step(weights, seed)


def reads(world: World) -> int:
    """Requests for shards so far."""
    return sum("/shards/" in op.key and op.name in ("get", "read_into") for op in world.store.log)


@pytest.mark.parametrize("name", ["trainer", "another"])
def test_going_on_from_an_older_version(world, states, name):
    """On the same machine from what is kept there, on another one from the store."""
    publisher = world.publisher(name, past=ROOMY)
    publisher.fork(3)
    before = reads(world)
    new = world.checkpoint(forked(world, 3))
    published = publisher.publish_checkpoint(new, step=4)
    assert (published.version, published.form) == (7, Form.DELTA)
    assert (reads(world) == before) == (name == "trainer")
    record = world.catalog.manifest_of(7)
    assert record.manifest.parent == world.catalog.manifest_of(3).ref
    assert record.manifest.epoch == world.catalog.manifest_of(6).manifest.epoch + 1
    assert world.restored(7)["config.json"] == (new / "config.json").read_bytes()
    assert world.versions() == [1, 2, 3, 4, 5, 6, 7]
    # The next one goes on from there.
    assert publisher.publish_checkpoint(world.checkpoint(step(forked(world, 3), 5))).version == 8
    assert world.catalog.manifest_of(8).manifest.parent == record.ref


def test_a_checkpoint_on_this_host_saves_the_download(world, states):
    publisher = world.publisher("another", past=ROOMY)
    before = reads(world)
    assert publisher.adopt(states[2]) == 2
    published = publisher.publish_checkpoint(world.checkpoint(forked(world, 2)))
    assert (published.version, published.form) == (7, Form.DELTA)
    assert world.catalog.manifest_of(7).manifest.parent == world.catalog.manifest_of(2).ref
    assert reads(world) == before


def test_the_newest_version_on_this_host(world, states):
    publisher = world.publisher("another")
    before = reads(world)
    assert publisher.adopt(states[6]) == 6
    assert publisher.publish_checkpoint(world.checkpoint(step(make(), 3))).form is Form.DELTA
    assert world.catalog.manifest_of(7).manifest.parent == world.catalog.manifest_of(6).ref
    assert reads(world) == before


def test_a_checkpoint_that_is_no_version_is_no_base(world, states):
    publisher = world.publisher("another")
    assert publisher.adopt(world.checkpoint(step(make(), 12345))) == 0
    publisher.fork(3)
    assert publisher.adopt(states[2]) == 0  # it must be the one that was named
    assert publisher.publish_checkpoint(world.checkpoint(forked(world, 3))).version == 7
    assert world.catalog.manifest_of(7).manifest.parent == world.catalog.manifest_of(3).ref


def test_nothing_to_adopt_from_an_empty_run(world):
    assert world.publisher().adopt(world.checkpoint(make())) == 0


def test_forks_from_what_was_never_committed(world, states):
    publisher = world.publisher()
    for version in (0, 7, 99):
        with pytest.raises((NotFound, Invalid)):
            publisher.fork(version)


def test_who_was_at_work_is_fenced(world, states):
    old = world.publisher("old")
    old.start()
    new = world.publisher("new")
    new.fork(2)
    assert new.publish_checkpoint(world.checkpoint(forked(world, 2))).version == 7
    with pytest.raises(Fenced):
        old.publish_checkpoint(states[6])


@pytest.mark.parametrize("past", [ROOMY, PastLimits(versions=0, image_share=0.0)])
def test_subscribers_ahead_move_over(world, states, past):
    """With older versions kept the way back is local and only the new delta is fetched; without, the cheapest path is taken."""
    publisher = world.publisher(past=ROOMY)
    subscriber = world.subscriber(past=past)
    world.catalog.move("latest", 1, expected_sequence=None, who="test", why="to begin")
    for version in range(1, 7):
        world.catalog.move("latest", version, expected_sequence=None, who="test", why="step by step")
        subscriber.step()
    publisher.fork(4)
    publisher.publish_checkpoint(world.checkpoint(forked(world, 4)))
    before = reads(world)
    done = subscriber.step()
    assert done.version is not None
    assert done.version.version == 7
    assert done.update is not None
    record = world.catalog.manifest_of(7)
    assert subscriber._replica.root == record.manifest.root
    if past.versions:
        assert done.update.path.goes_back
        assert done.update.bytes_fetched == record.manifest.payload_bytes
        assert reads(world) > before
    else:
        assert done.update.path.starts_fresh


def test_a_fleet_goes_back_without_the_network(world, states):
    subscriber = world.subscriber(channel="serving", past=ROOMY)
    for version in (2, 4, 6):
        world.catalog.move("serving", version, expected_sequence=None, who="test", why="forth")
        subscriber.step()
    world.catalog.move("serving", 2, expected_sequence=None, who="test", why="back")
    before = reads(world)
    done = subscriber.step()
    assert done.version is not None
    assert (done.version.version, done.sequence) == (2, 4)
    assert done.update is not None
    assert (done.update.bytes_fetched, reads(world)) == (0, before)


def test_a_subscriber_adopts_a_checkpoint(world, states):
    from weightsync.publisher.checkpoint import open_checkpoint
    from weightsync.publisher.source import Chunking

    subscriber = world.subscriber()
    layout = subscriber.expected_layout()
    assert layout is not None
    before = reads(world)
    source = open_checkpoint(states[5], Chunking.of(layout))
    found = subscriber.adopt(source)
    source.close()
    assert found == world.catalog.manifest_of(5).ref
    assert reads(world) == before
    done = subscriber.step()
    assert done.update is not None
    assert [payload.base_version for payload in done.update.path.steps] == [5]
