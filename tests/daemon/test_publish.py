"""A publisher's main loop: what appears is published and told; what is wrong with one checkpoint or with the store ends nothing."""

import shutil

import pytest

from tests.daemon.planes import Plane
from tests.daemon.test_subscribe import value
from tests.publisher.checkpoints import make, step
from weightsync.daemon.process import Process
from weightsync.daemon.publish import WatchingPublisher
from weightsync.errors import Fenced
from weightsync.publisher.watch import Watcher
from weightsync.store.memory_faults import Faults
from weightsync.telemetry import names


@pytest.fixture
def inbox(world, tmp_path):
    """Puts successive checkpoints where the watcher looks."""
    directory, state = tmp_path / "inbox", {"weights": make(size=500), "step": 0}
    directory.mkdir()

    def put(*, same=False):
        state["step"] += 1
        shutil.move(world.checkpoint(state["weights"], shards=1), directory / f"step-{state['step']}")
        state["weights"] = state["weights"] if same else step(state["weights"], state["step"])

    put.directory = directory
    return put


def daemon(process, world, inbox, tmp_path, **options):
    publisher = world.publisher()
    publisher.start()
    watcher = Watcher(inbox.directory, tmp_path / "memory.json")
    return WatchingPublisher(process, publisher, watcher, run="run", interval_s=0.02, **options)


def test_each_commit_is_told_and_counted(world, inbox, tmp_path):
    plane, versions = Plane(), []

    def published(found, done):
        versions.append(done.version)
        assert plane.next("notify") == ("notify", "run", "latest")
        if done.version == 3:
            process.bell.end()
        else:
            inbox()

    inbox()
    with Process("publisher", metrics=names.PUBLISHER) as process:
        loop = daemon(process, world, inbox, tmp_path, plane=plane, on_published=published)
        assert loop.ready().holds
        loop.run()
        assert value(process, names.PUBLISHED) == 3
        assert value(process, names.VERSIONS, '{form="delta"}') == 2
        assert 0 < value(process, names.CHANGED) < 0.1
        assert value(process, names.NOTICES, '{outcome="sent"}') == 3
    assert versions == [1, 2, 3]


def test_a_control_plane_that_hangs_delays_nothing(world, inbox, tmp_path):
    plane, versions = Plane(), []
    plane.hang.set()

    def published(found, done):
        versions.append(done.version)
        if done.version == 2:
            process.bell.end()
        else:
            inbox()

    inbox()
    with Process("publisher", metrics=names.PUBLISHER) as process:
        daemon(process, world, inbox, tmp_path, plane=plane, on_published=published).run()
    assert versions == [1, 2]


def test_a_bad_checkpoint_is_refused_once_and_a_store_that_is_away_is_waited_for(world, inbox, tmp_path):
    errors, seen = [], []

    def failed(error):
        errors.append(error.kind)
        seen.append(loop.ready().holds)
        if error.kind == "unavailable":
            world.store.set_faults(Faults())

    def published(found, done):
        process.bell.end()

    with Process("publisher", metrics=names.PUBLISHER) as process:
        loop = daemon(process, world, inbox, tmp_path, on_published=published, on_error=failed)
        inbox()
        world.store.set_faults(Faults(1, unavailable=1.0))
        loop.run()
        assert value(process, names.PUBLISHED) == 1
        assert value(process, names.ERRORS, '{kind="unavailable"}') == len(errors)
    assert set(errors) == {"unavailable"}


def test_versions_without_a_change_raise_an_alarm(world, inbox, tmp_path):
    versions = []

    def published(found, done):
        versions.append(done.version)
        if done.version == 4:
            process.bell.end()
        else:
            inbox(same=True)

    inbox(same=True)
    with Process("publisher", metrics=names.PUBLISHER) as process:
        daemon(process, world, inbox, tmp_path, on_published=published).run()
        assert value(process, names.ALARM, '{alarm="unchanged"}') == 1
        assert value(process, names.ALARM, '{alarm="unusual_change"}') == 0


def test_a_fenced_publisher_ends(world, inbox, tmp_path):
    inbox()
    with Process("publisher", metrics=names.PUBLISHER) as process:
        loop = daemon(process, world, inbox, tmp_path)
        world.publisher("newer").start()
        with pytest.raises(Fenced):
            loop.run()
