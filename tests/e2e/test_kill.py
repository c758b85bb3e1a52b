"""kill -9 of real processes at every named point of publishing and following, over a file store."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.history import check
from tests.publisher.checkpoints import make, step, tree, write
from weightsync.catalog import Catalog
from weightsync.store.open import open_store

ACTOR = Path(__file__).parent / "actor.py"
ROOT = Path(__file__).parents[2]

PUBLISHER_DIES = [  # where, and whether the version that it was making is committed
    ("publish.start", False),
    ("publish.claimed", False),
    ("publish.staged", False),
    ("publish.mid_diff", False),
    ("publish.before_shard", False),
    ("publish.before_shard@3", False),
    ("publish.after_shard", False),
    ("publish.shards_done", False),
    ("publish.before_manifest", False),
    ("publish.before_head", False),
    ("store.file.write@4", False),
    ("store.file.publish@5", False),
    ("subscribe.journal_open", False),
    ("subscribe.mid_apply@4", False),
    ("publish.after_head", True),
    ("publish.before_promote", True),
    ("subscribe.before_mark", True),
    ("subscribe.marked", True),
]
SUBSCRIBER_DIES = [  # where, and whether the replica is the new version then
    ("subscribe.head_seen", False),
    ("subscribe.before_fetch", False),
    ("subscribe.fetched", False),
    ("subscribe.journal_open", False),
    ("subscribe.mid_apply", False),
    ("subscribe.mid_apply@6", False),
    ("subscribe.applied", False),
    ("subscribe.before_mark", False),
    ("subscribe.marked", True),
    ("subscribe.before_out", True),
    ("subscribe.out_written", True),
    ("subscribe.switched", True),
]


def run(*arguments, failpoint=""):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WEIGHTSYNC_FAILPOINTS": f"{failpoint}" if failpoint else ""}
    return subprocess.run(
        [sys.executable, str(ACTOR), *map(str, arguments)], capture_output=True, text=True, env=environment, timeout=100, check=False
    )


def thirds(points):
    """In parts, so that no single test takes long on a busy machine."""
    size = -(-len(points) // 3)
    return [points[start : start + size] for start in range(0, len(points), size)]


def killed(name):
    base, _, nth = name.partition("@")
    return f"{base}=kill" + (f"@{nth}" if nth else "")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Successive checkpoints, by the note they are published with."""
    home, weights, paths = tmp_path_factory.mktemp("checkpoints"), make(size=10_000), []
    for number in range(len(PUBLISHER_DIES) + 2):
        paths.append(write(home / f"step-{number}", weights))
        weights = step(weights, number, 0.1)
    return paths


@pytest.mark.parametrize("points", thirds(PUBLISHER_DIES), ids=lambda points: points[0][0])
def test_a_publisher_killed_anywhere_goes_on_and_nothing_committed_is_lost(tmp_path, checkpoints, points):
    url = f"file://{tmp_path}/store"
    catalog = Catalog(open_store(url), "run")
    assert run("publish", url, tmp_path / "trainer", checkpoints[0]).returncode == 0
    expected = [str(checkpoints[0])]
    for (point, committed), path in zip(points, checkpoints[1:], strict=False):
        died = run("publish", url, tmp_path / "trainer", path, failpoint=killed(point))
        assert died.returncode == -signal.SIGKILL, (point, died)
        known = check(catalog, tmp_path, lambda note: tree(Path(note)), only=[])
        assert list(known.values()) == expected + [str(path)] * committed, point
        again = run("publish", url, tmp_path / "trainer", path)
        assert again.returncode == 0, (point, again.stderr)
        expected += [str(path)] * (1 + committed)
    notes = check(catalog, tmp_path, lambda note: tree(Path(note)))
    assert list(notes.values()) == expected


@pytest.mark.parametrize("points", thirds(SUBSCRIBER_DIES), ids=lambda points: points[0][0])
def test_a_subscriber_killed_anywhere_serves_a_whole_version_and_goes_on(tmp_path, checkpoints, points):
    from tests.publisher.world import World

    url = f"file://{tmp_path}/store"
    world = World(tmp_path, open_store(url))
    publisher, out = world.publisher(), tmp_path / "out"
    publisher.publish_checkpoint(checkpoints[0])
    assert run("follow", url, tmp_path / "host", out).returncode == 0
    for number, ((point, held), path) in enumerate(zip(points, checkpoints[1:], strict=False), 2):
        publisher.publish_checkpoint(path)
        died = run("follow", url, tmp_path / "host", out, failpoint=killed(point))
        assert died.returncode == -signal.SIGKILL, (point, died)
        shown = checkpoints[number - 1] if point == "subscribe.switched" else checkpoints[number - 2]
        assert tree(out / "current") == tree(shown), point
        again = run("follow", url, tmp_path / "host", out)
        assert again.returncode == 0, (point, again.stderr)
        assert json.loads(again.stdout) == {"version": number}
        assert tree(out / "current") == tree(path), point
        assert ("undid" in again.stderr) <= (not held)
        left = [
            entry.name for entry in out.iterdir() if entry.name not in {".lock", ".weightsync", "current", str(number), str(number - 1)}
        ]
        assert left == [], point
    world.close()


@pytest.mark.parametrize("point", ["publish.mid_diff", "publish.before_shard@2", "publish.before_head", "publish.before_promote"])
def test_a_full_disk_in_the_publisher_is_an_error_with_the_exit_code_for_it(tmp_path, checkpoints, point):
    url = f"file://{tmp_path}/store"
    assert run("publish", url, tmp_path / "trainer", checkpoints[0]).returncode == 0
    base, _, nth = point.partition("@")
    failed = run("publish", url, tmp_path / "trainer", checkpoints[1], failpoint=f"{base}=raise:ENOSPC" + (f"@{nth}" if nth else ""))
    if point != "publish.before_promote":
        assert failed.returncode == 3, failed
        assert "no_space" in failed.stderr
    assert run("publish", url, tmp_path / "trainer", checkpoints[2]).returncode == 0
    catalog = Catalog(open_store(url), "run")
    notes = check(catalog, tmp_path, lambda note: tree(Path(note)))
    assert list(notes.values())[-1] == str(checkpoints[2])


@pytest.mark.parametrize(
    "deaths",
    [{}, {"one": "publish.before_head=kill@2", "two": "publish.after_head=kill@1", "three": "publish.after_shard=kill@9"}],
    ids=["alive", "killed"],
)
def test_publishers_that_race_make_one_history_and_the_losers_are_fenced(tmp_path, checkpoints, deaths):
    url = f"file://{tmp_path}/store"
    names = ("one", "two", "three")
    racers = {
        name: subprocess.Popen(
            [sys.executable, str(ACTOR), "publish", url, str(tmp_path / name), *map(str, checkpoints[number * 3 : number * 3 + 6])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "WEIGHTSYNC_FAILPOINTS": deaths.get(name, "")},
        )
        for number, name in enumerate(names)
    }
    said, codes = {}, {}
    for name, racer in racers.items():
        out, err = racer.communicate(timeout=100)
        said[name], codes[name] = [json.loads(line) for line in out.splitlines()], racer.returncode
        assert racer.returncode in ((0, 1, -signal.SIGKILL) if deaths else (0, 1)), err
        assert (racer.returncode == 1) == any("fenced" in line for line in said[name]), (out, err)
    assert deaths or 0 in codes.values(), "the newest claim is never fenced"
    catalog = Catalog(open_store(url), "run")
    notes = check(catalog, tmp_path, lambda note: tree(Path(note)))
    acknowledged = [(line["version"], line["note"]) for lines in said.values() for line in lines if "version" in line]
    assert len(acknowledged) == len(set(acknowledged))
    if deaths:
        assert set(acknowledged) <= set(notes.items())
    else:
        assert sorted(acknowledged) == sorted(notes.items())
    assert run("publish", url, tmp_path / "one", checkpoints[-1]).returncode == 0
    assert list(check(catalog, tmp_path, lambda note: tree(Path(note)), only=[]).values()) == [*notes.values(), str(checkpoints[-1])]
