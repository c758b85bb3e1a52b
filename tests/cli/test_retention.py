"""gc, pin, unpin, copy and repair, as people and scripts use them."""

import shutil

import pytest

from tests.cli.tools import RUN, contents


@pytest.fixture
def at(shared, tmp_path):
    """A store of our own: four versions, `serving` on the second."""
    shutil.copytree(shared.path, tmp_path / "store")
    return ("--store", (tmp_path / "store").as_uri(), "--run", RUN)


def test_what_would_go_and_why_the_rest_stays(cli, at, tmp_path):
    before = contents(tmp_path / "store")
    found = cli("gc", *at, "--keep", 1, "--dry-run", "--json").json
    assert [one["version"] for one in found["kept"]] == [2, 4]
    assert found["kept"][0]["why"] == ["channel 'serving' points to it"]
    assert [one["version"] for one in found["waiting"]] == [1, 3]
    text = cli("gc", *at, "--keep", 1, "--grace", "0s", "--dry-run").out
    assert "keep    2: channel 'serving' points to it" in text
    assert "would be deleted" in text
    assert contents(tmp_path / "store") == before


def test_marked_then_gone(cli, at, tmp_path, shared):
    assert cli("pin", 3, *at, "--why", "release", "--json").json["version"] == 3
    marked = cli("gc", *at, "--keep", 1, "--grace", "24h", "--json").json
    assert ([one["version"] for one in marked["waiting"]], marked["objects_deleted"]) == ([1], 0)
    refused = cli("restore", "--version", 1, "--out", tmp_path / "out", *at, "--json", code=1)
    assert refused.json["error"]["kind"] == "compacted"
    assert cli("gc", *at, "--keep", 1, "--grace", "0s", "--json").json["condemned"] == [1]
    for version in (2, 3, 4):
        cli("restore", "--version", version, "--out", tmp_path / f"out-{version}", *at)
        assert contents(tmp_path / f"out-{version}") == contents(shared.checkpoints[version])
    assert not (tmp_path / "out").exists()
    assert cli("verify", *at, "--json").json["ok"]
    assert cli("versions", *at, "--json").json["collected"] == [1]
    cli("unpin", 3, *at)
    assert cli("unpin", 3, *at, "--json", code=2).json["error"]["kind"] == "not_found"
    assert cli("gc", *at, "--keep", 1, "--grace", "0s", "--json").json["condemned"] == [3]
    assert cli("pin", 1, *at, "--json", code=1).json["error"]["kind"] == "compacted"
    assert cli("publish", shared.checkpoints[1], *at).out == "5\n"


@pytest.mark.parametrize("grace", ["24", "h", "1.5h", "-1h"])
def test_a_grace_time_needs_a_unit(cli, at, grace):
    assert cli("gc", *at, "--keep", 1, f"--grace={grace}", "--json", code=2).json["error"]["kind"] == "invalid"


def test_copy_and_repair(cli, at, tmp_path, shared):
    there = (tmp_path / "there").as_uri()
    done = cli("copy", *at, "--to", there, "--json").json
    assert (done["versions"], done["damaged"]) == ([1, 2, 3, 4], [])
    lost = next((tmp_path / "store" / RUN / "shards" / "1-1-0").iterdir())
    lost.unlink()
    assert not cli("verify", *at, "--json", code=1).json["ok"]
    assert not cli("repair", *at, "--cache", tmp_path / "cache", "--json", code=1).json["ok"]
    back = cli("repair", *at, "--from", there, "--cache", tmp_path / "cache", "--json").json
    assert [one["from"] for one in back["brought"]] == [there]
    assert cli("verify", *at, "--json").json["ok"]
    alone = ("--store", (tmp_path / "alone").as_uri(), "--run", RUN)
    assert cli("copy", *at, "--to", alone[1], "--version", "serving", "--json").json["held"] == [1]
    cli("restore", "--version", 2, "--out", tmp_path / "out", *alone)
    assert contents(tmp_path / "out") == contents(shared.checkpoints[2])
