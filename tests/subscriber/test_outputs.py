import os
import shutil
from pathlib import Path

import pytest

from tests.publisher.checkpoints import make, step, tree
from weightsync.errors import Conflict, Invalid
from weightsync.subscriber.outputs import DirectoryOutput


@pytest.fixture
def scene(world):
    """Four versions, a replica that goes to any of them, and an output directory."""
    publisher, weights, paths = world.publisher(), make(), []
    for number in range(4):
        paths.append(world.checkpoint(weights))
        publisher.publish_checkpoint(paths[-1])
        weights = step(weights, number)
    return Scene(world, paths)


class Scene:
    def __init__(self, world, paths):
        self.world, self.paths, self.out = world, paths, world.home / "out"
        self.subscriber = world.subscriber(channel="serving")

    def go(self, output, version):
        self.world.catalog.move("serving", version, expected_sequence=None, who="op", why="")
        self.subscriber.step()
        output.deliver(self.world.catalog, self.subscriber._replica, self.world.catalog.manifest_of(version))

    def content(self):
        return sorted(path.name for path in self.out.iterdir() if not path.name.startswith("."))


def test_each_version_has_its_directory_and_current_names_it(scene):
    output = DirectoryOutput(scene.out)
    assert output.version is None
    for version in (1, 2):
        scene.go(output, version)
        assert output.version.version == version
        assert (scene.out / "current").readlink() == Path(str(version))
        assert tree(scene.out / "current") == tree(scene.paths[version - 1])
    assert scene.content() == ["1", "2", "current"]
    output.close()


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_last_few_are_kept_in_the_order_of_delivery(scene, keep):
    output = DirectoryOutput(scene.out, keep=keep)
    order = [1, 2, 3, 4, 2]  # the last one is a rollback
    for version in order:
        scene.go(output, version)
        assert tree(scene.out / "current") == tree(scene.paths[version - 1])
    kept = []
    for version in reversed(order):
        if version not in kept:
            kept.append(version)
    assert scene.content() == [*sorted(map(str, kept[:keep])), "current"]
    output.close()


def test_a_restart_knows_what_it_has(scene):
    output = DirectoryOutput(scene.out)
    scene.go(output, 3)
    output.close()
    again = DirectoryOutput(scene.out)
    assert again.version == scene.world.catalog.manifest_of(3).ref
    again.close()


def test_left_overs_of_killed_writers_are_removed(scene):
    DirectoryOutput(scene.out).close()
    for name in (".trash-0123456789abcdef", ".7.restoring-0123456789abcdef"):
        (scene.out / name / "deep").mkdir(parents=True)
    (scene.out / ".link-0123456789abcdef").symlink_to("nowhere")
    (scene.out / ".book-0123456789abcdef").write_text("x")
    (scene.out / ".mine").write_text("not ours")
    DirectoryOutput(scene.out).close()
    assert {path.name for path in scene.out.iterdir()} == {".lock", ".mine"}


def test_a_version_directory_of_an_earlier_delivery_is_written_anew(scene):
    output = DirectoryOutput(scene.out, keep=3)
    for version in (1, 2):
        scene.go(output, version)
    (scene.out / "1" / "config.json").write_text("meddled with")
    scene.go(output, 1)
    assert tree(scene.out / "current") == tree(scene.paths[0])
    output.close()


def test_what_is_not_ours_is_not_touched(scene):
    output = DirectoryOutput(scene.out)
    scene.go(output, 1)
    (scene.out / "2").mkdir()
    (scene.out / "2" / "precious").write_text("x")
    with pytest.raises(Invalid, match="not written by this command"):
        scene.go(output, 2)
    assert (scene.out / "2" / "precious").read_text() == "x"
    assert output.version.version == 1
    output.close()


def test_a_real_directory_called_current_is_refused(scene):
    (scene.out / "current").mkdir(parents=True)
    output = DirectoryOutput(scene.out)
    with pytest.raises(Invalid, match="current"):
        scene.go(output, 1)
    output.close()


def test_one_writer_at_a_time(scene):
    first = DirectoryOutput(scene.out)
    with pytest.raises(Conflict, match="another process"):
        DirectoryOutput(scene.out)
    first.close()
    DirectoryOutput(scene.out).close()


def test_the_current_one_stays_whatever_the_book_says(scene):
    output = DirectoryOutput(scene.out, keep=1)
    scene.go(output, 1)
    scene.go(output, 2)
    assert scene.content() == ["2", "current"]
    assert os.path.realpath(scene.out / "current") == str(scene.out / "2")
    output.close()


def test_keeping_none_is_refused(scene):
    with pytest.raises(Invalid):
        DirectoryOutput(scene.out, keep=0)


def test_a_version_directory_that_is_gone_is_written_again(scene):
    output = DirectoryOutput(scene.out)
    scene.go(output, 1)
    shutil.rmtree(scene.out / "1")
    assert output.version is None
    output.deliver(scene.world.catalog, scene.subscriber._replica, scene.world.catalog.manifest_of(1))
    assert tree(scene.out / "current") == tree(scene.paths[0])
    output.close()


BOOKS = [
    ("another", lambda path: path.write_text("{}")),
    ("infinite", lambda path: path.write_text('{"kept":[{"version":1e999,"manifest":""}],"making":null}')),
    ("deep", lambda path: path.write_text("[" * 200_000)),
    ("fifo", os.mkfifo),
    ("endless", lambda path: path.symlink_to("/dev/zero")),
    ("huge", lambda path: path.write_bytes(b" " * (1 << 21))),
]


@pytest.mark.parametrize("damage", [damage for _, damage in BOOKS], ids=[name for name, _ in BOOKS])
def test_a_damaged_book_is_named(scene, damage):
    scene.out.mkdir()
    damage(scene.out / ".weightsync")
    with pytest.raises(Invalid, match=r"\.weightsync"):
        DirectoryOutput(scene.out)
