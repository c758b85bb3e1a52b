"""Engines on the command line: fed, verified, and refused where they cannot be."""

import json

import pytest

from tests.cli.test_daemons import daemon
from tests.cli.tools import contents


def test_an_engine_is_fed_and_proven(cli, shared, tmp_path):
    engine = f"dir://{tmp_path / 'served'}"
    fed = cli("subscribe", *shared.at, "--engine", engine, "--once", "--json", "--prove", "before-resume", "--pause-limit", "5s").json
    assert fed["version"] == 4
    assert set(fed["engine_s"]) == {"stage", "pause", "verify"}
    assert contents(tmp_path / "served" / "current") == contents(shared.checkpoints[4])
    proven = cli("verify", *shared.at, "--engine", engine, "--json").json
    assert proven["ok"]
    assert [one["version"] for one in proven["versions"]] == [4]
    file = tmp_path / "served" / "current" / "model-00001-of-00002.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    found = cli("verify", *shared.at, "--engine", engine, "--json", code=1).json
    assert not found["ok"]
    assert "not those of version 4" in json.dumps(found["damage"])
    cli("verify", *shared.at, "--engine", engine, "--version", 1, code=1)


def test_a_daemon_feeds_an_engine_and_shows_its_phases(cli, shared, tmp_path):
    flags = ("--engine", f"dir://{tmp_path / 'served'}", "--metrics", "127.0.0.1:0", "--poll-s", 0.1, "--json")
    with daemon(cli, "subscribe", *shared.at, *flags) as running:
        assert running.event("version")["version"] == 4
        code, err = running.stop()
    assert code == 0
    assert "metrics and health on" in err
    assert (tmp_path / "served" / "current").readlink().name == "4"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--engine", "http://127.0.0.1:8000"), "no URL of an engine"),
        (("--engine", "dir://x", "--mode", "drop"), "--mode"),
        (("--engine", "dir://x", "--prove", "never"), "--prove"),
        (("--engine", "dir://x", "--pause-limit", "soon"), "--pause-limit"),
        (("--mode", "keep"), "--engine"),
        (("--engine", "dir://x", "--engine", "dir://x"), "twice"),
        (("--engine", "memory://x"), "no engine is called"),
    ],
)
def test_what_cannot_be_is_refused(cli, shared, flags, said):
    assert said in cli("subscribe", *shared.at, *flags, "--once", code=2).err


def test_an_engine_that_does_not_answer_is_no_reason_to_end(cli, shared):
    code = cli("verify", *shared.at, "--engine", "dir:///nowhere/at/all", code=None).code
    assert code == 2


@pytest.mark.parametrize("point", ["before_swap", "out_written", "switched", "swapped"])
def test_a_subscriber_killed_anywhere_in_a_swap_leaves_one_whole_version_and_the_next_goes_on(cli, shared, tmp_path, point):
    served = tmp_path / "served"
    follow = ("subscribe", *shared.at, "--engine", f"dir://{served}", "--cache", tmp_path / "cache", "--once")
    cli(*follow, "--channel", "serving")
    cli(*follow, code=None, env={"WEIGHTSYNC_FAILPOINTS": f"subscribe.{point}=kill"})
    left = int((served / "current").readlink().name)
    assert left in (2, 4)
    assert contents(served / "current") == contents(shared.checkpoints[left])
    cli(*follow)
    assert contents(served / "current") == contents(shared.checkpoints[4])
    assert not list((cli.home / "images").glob("*/change-*"))
