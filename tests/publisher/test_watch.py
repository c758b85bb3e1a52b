import json
import os

import pytest

from tests.publisher.checkpoints import file_bytes, make, step, write
from weightsync.errors import NotFound
from weightsync.publisher.watch import Watcher, step_of


@pytest.fixture
def watched(tmp_path):
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def names(found):
    return [f.path.name for f in found]


def twice(watcher):
    watcher.look()
    return watcher.look()


def test_numbered_checkpoints_come_in_the_order_of_their_numbers(watched, tmp_path):
    for name in ("checkpoint-1000", "checkpoint-200", "final", "step_3.safetensors"):
        if name.endswith(".safetensors"):
            (watched / name).write_bytes(file_bytes(make()))
        else:
            write(watched / name, make())
    found = twice(Watcher(watched, tmp_path / "memory"))
    assert names(found) == ["step_3.safetensors", "checkpoint-200", "checkpoint-1000", "final"]
    assert [f.step for f in found] == [3, 200, 1000, None]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("checkpoint-500", 500),
        ("step_000100", 100),
        ("global_step_12_hf", 12),
        ("grpo_lr1e-6_step007", 7),
        ("final", None),
        ("s3.safetensors", 3),
    ],
)
def test_steps_come_from_names(tmp_path, name, number):
    assert step_of(tmp_path / name) == number


def test_what_is_published_is_not_ready_again_and_a_restart_remembers(watched, tmp_path):
    write(watched / "step-1", make())
    watcher = Watcher(watched, tmp_path / "deep" / "memory")
    for found in twice(watcher):
        watcher.published(found)
    assert twice(watcher) == []
    assert twice(Watcher(watched, tmp_path / "deep" / "memory")) == []
    assert json.loads((tmp_path / "deep" / "memory").read_text()).keys() == {"step-1"}


def test_a_checkpoint_still_being_written_waits(watched, tmp_path):
    path = write(watched / "step-1", make())
    (path / "model-00002-of-00003.safetensors").unlink()
    watcher = Watcher(watched, tmp_path / "memory")
    assert twice(watcher) == []
    write(path, make())
    assert watcher.look() == []  # it has just changed
    assert names(watcher.look()) == ["step-1"]


def test_a_checkpoint_that_changes_between_looks_waits(watched, tmp_path):
    path = write(watched / "step-1", make())
    watcher = Watcher(watched, tmp_path / "memory")
    watcher.look()
    os.utime(path / "config.json", ns=(1, 1))
    assert watcher.look() == []
    assert names(watcher.look()) == ["step-1"]


def test_unfinished_and_foreign_names_are_not_looked_at(watched, tmp_path):
    for name in (".hidden", "tmp-checkpoint-5", "step-1.tmp", "step-2.partial", "step-3.incomplete"):
        write(watched / name, make())
    (watched / "notes.txt").write_text("x")
    (watched / "empty").mkdir()
    assert twice(Watcher(watched, tmp_path / "memory")) == []


def test_a_step_written_again_is_published_again(watched, tmp_path):
    write(watched / "step-1", make())
    watcher = Watcher(watched, tmp_path / "memory")
    for found in twice(watcher):
        watcher.published(found)
    for file in (watched / "step-1").iterdir():
        if file.is_file():
            file.unlink()
    write(watched / "step-1", step(make(), 1))
    assert names(twice(watcher)) == ["step-1"]


def test_a_publisher_on_a_new_machine_goes_on_after_the_committed_step(watched, tmp_path):
    for number in (1, 2, 3, 4):
        write(watched / f"step-{number}", make())
    assert names(twice(Watcher(watched, tmp_path / "memory", published_step=2))) == ["step-3", "step-4"]


def test_a_damaged_memory_only_costs_a_version_without_changes(watched, tmp_path, caplog):
    (tmp_path / "memory").write_text("{")
    write(watched / "step-1", make())
    assert names(twice(Watcher(watched, tmp_path / "memory"))) == ["step-1"]
    assert "starting without it" in caplog.text


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(NotFound, match="nowhere"):
        Watcher(tmp_path / "nowhere", tmp_path / "memory").look()
