"""`status` and `top`: the same facts from the store, from a server, as tables and as JSON."""

import json
import os
import pty
import subprocess

import pytest

from tests.cli.test_daemons import daemon
from tests.cli.tools import CANARY, RUN, moved, save, weights
from weightsync.cli.status_text import lines
from weightsync.telemetry.alarms import Alarm
from weightsync.telemetry.facts import ChannelFact, RunFacts, SubscriberFact, UpdateFact, VersionFact


def test_from_the_store(cli, shared):
    found = cli("status", *shared.at, "--json").json
    assert {one["channel"]: one["version"] for one in found["channels"]} == {"latest": 4, "serving": 2}
    assert [(one["version"], one["snapshot"]) for one in found["versions"]] == [(1, True), (2, False), (3, False), (4, False)]
    assert found["subscribers"] is None
    text = cli("status", *shared.at).out
    assert "run tuning: version 4" in text
    assert "not known without a control plane" in text


def test_alarms_decide_only_when_asked(cli, shared):
    env = {"WEIGHTSYNC_ALARM_UNCHANGED_VERSIONS": "1"}
    assert cli("status", *shared.at, env=env).code == 0
    result = cli("status", *shared.at, "--check", env=env, code=1)
    assert "ALARM unchanged: versions 4 to 4 changed nothing" in result.out
    assert cli("status", *shared.at, "--check", env={"WEIGHTSYNC_ALARM_UNCHANGED_VERSIONS": "2"}).code == 0


def test_errors(cli, shared):
    assert "give --server HOST:PORT or --store URL" in cli("status", "--run", RUN, code=2).err
    assert cli("status", "--server", "127.0.0.1:1", "--run", RUN, "--json", code=3).json["error"]["kind"] == "unavailable"
    assert cli("status", "--store", shared.url, "--run", "other", "--json", code=2).json["error"]["kind"] == "not_found"


def test_top_in_a_pipe_and_in_a_terminal(cli, shared):
    out = cli("top", *shared.at, "--json", "--count", 2, "--interval-s", 0.1).out
    assert [json.loads(line)["run"] for line in out.splitlines()] == [RUN, RUN]
    ours, theirs = pty.openpty()
    done = subprocess.Popen(cli.command("top", *shared.at, "--count", 1), stdout=theirs, stderr=subprocess.PIPE, env=cli.env, cwd=cli.home)
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    os.close(ours)
    _, err = done.communicate()
    assert (done.returncode, err) == (0, b"")
    assert b"\x1b[?1049h" in shown  # the whole screen
    assert b"CHANNEL" in shown


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other end is closed
        return b""


def test_from_a_server_with_a_fleet(cli, tmp_path):
    at = ("--store", (tmp_path / "store").as_uri(), "--run", RUN)
    first = weights(5, 4000)
    cli("publish", save(tmp_path / "step-1", first), *at, "--cache", tmp_path / "p")
    with daemon(cli, "serve", "--listen", "127.0.0.1:0", *at[:2], "--json") as server:
        address = server.event("listening")["address"]
        ask = ("--server", address, "--run", RUN)
        following = ("subscribe", *at, "--out", tmp_path / "out", "--cache", tmp_path / "s", "--server", address, "--poll-s", 60, "--json")
        with daemon(cli, *following, "--name", "host-1", "--region", "eu") as subscriber:
            assert subscriber.event("version")["version"] == 1
            # An hour would pass until the next poll: the publisher's notice and the watch bring it at once.
            cli("publish", save(tmp_path / "step-2", moved(first, 6)), *at, "--cache", tmp_path / "p", "--server", address)
            assert subscriber.event("version")["version"] == 2
            found = cli("status", *ask, "--json").json
            while [one["served"] for one in found["subscribers"]] != [2]:  # its report is on its way
                found = cli("status", *ask, "--json").json
            one = found["subscribers"][0]
            assert (one["name"], one["region"], one["held"], one["lag_versions"], one["stage"]) == ("host-1", "eu", 2, 0, "idle")
            assert one["update"]["version"] == 2
            assert found["regions"][0]["below"] == 0
            text = cli("status", *ask).out
            assert "host-1" in text
            assert [one["lanes"] for one in found["versions"]] == [None, None]  # not in the server's answers, which is not zero
            waited = cli("promote", 2, "--channel", "canary", *at, "--server", address, "--wait", 30, "--json")
            assert (waited.json["complete"], waited.json["subscribers"]) == (None, 0)
            assert "nobody to wait for" in waited.err
            assert "ALARM" not in text
            assert subscriber.stop()[0] == 0
        assert server.stop()[0] == 0


def test_with_tokens_each_says_what_it_may_and_no_token_is_shown(cli, tmp_path):
    at = ("--store", (tmp_path / "store").as_uri(), "--run", RUN)
    entries = ""
    for name, role in (("host-1", "subscriber"), ("reader", "reader")):
        (tmp_path / name).write_text(f"{CANARY}-{name}\n")
        entries += f'[[tokens]]\ntoken = "{CANARY}-{name}"\nrole = "{role}"\nname = "{name}"\n'
    (tmp_path / "tokens.toml").write_text(entries)
    cli("publish", save(tmp_path / "step-1", weights(5, 400)), *at, "--cache", tmp_path / "p")
    with daemon(cli, "serve", "--listen", "127.0.0.1:0", *at[:2], "--tokens", tmp_path / "tokens.toml", "--json") as server:
        address = server.event("listening")["address"]
        ask = ("status", "--server", address, "--run", RUN, "--json")
        assert cli(*ask, code=3).json["error"]["kind"] == "unauthenticated"
        assert cli(*ask, "--token-file", tmp_path / "reader").json["subscribers"] == []
        following = ("subscribe", *at, "--cache", tmp_path / "s", "--server", address, "--token-file", tmp_path / "host-1", "--json")
        with daemon(cli, *following, "--name", "host-1") as subscriber:
            subscriber.event("version")
            while [one["served"] for one in cli(*ask, "--token-file", tmp_path / "reader").json["subscribers"]] != [1]:
                pass
            assert subscriber.stop()[0] == 0
        # It may not speak for that name; it serves all the same.
        with daemon(cli, *following, "--name", "host-2", "--cache", tmp_path / "t") as other:
            assert other.event("version")["version"] == 1
            line = next(iter(other.process.stderr))
            while "host-2" not in line:
                line = next(iter(other.process.stderr))
            assert "going on without the control plane" in line
            assert CANARY not in line
            assert other.stop()[0] == 0
        assert server.stop()[0] == 0


def test_a_notice_that_cannot_be_given_fails_nothing(cli, tmp_path):
    at = ("--store", (tmp_path / "store").as_uri(), "--run", RUN, "--cache", tmp_path / "p")
    result = cli("publish", save(tmp_path / "step-1", weights(5, 400)), *at, "--server", "127.0.0.1:1")
    assert result.out == "1\n"
    assert "was not given notice" in result.err


def test_a_fixed_version(cli, shared, tmp_path):
    result = cli("subscribe", *shared.at, "--version", 2, "--once", "--out", tmp_path / "out", "--cache", tmp_path / "c", "--json")
    assert result.json["version"] == 2
    both = ("subscribe", *shared.at, "--version", 2, "--channel", "serving", "--once")
    assert cli(*both, "--json", code=2).json["error"]["kind"] == "invalid"


NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (RunFacts("r", NOW, (), (), None), ["run r: no version yet", "no channels", "no versions"]),
        (RunFacts("r", NOW, (), (), ()), ["no regions"]),
        (
            RunFacts(
                "r",
                NOW,
                (ChannelFact("latest", 2, 3, 1, NOW - 60, "ann", "better"),),
                (VersionFact(2, None, NOW - 60, 1, False, 1234, 0, 500, 1_000_000),),
                tuple(
                    SubscriberFact(
                        f"h{n:03}", "eu", "x", "latest", served=1, fetched_bytes=10**9, update=UpdateFact(1, 1, pause_s=0.05), seen_s=NOW
                    )
                    for n in range(50)
                ),
            ),
            [
                "latest         2         3   60 s  ann  better",
                "1,234    500 B  2000x",
                "50     50        -       1  60.0 s    50 GB  50 ms",
                "and 10 more",
            ],
        ),
    ],
)
def test_tables(facts, expected):
    text = "\n".join(lines(facts, [Alarm("silent", "2", "no new version")]))
    assert "ALARM silent: no new version" in text
    for part in expected:
        assert part in text
