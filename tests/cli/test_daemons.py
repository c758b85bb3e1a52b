"""Daemons: a JSON line per event, SIGTERM drains, the old version stays whatever happens."""

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.tools import CANARY, Cli, contents, moved, save, weights


class Daemon:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def event(self, name: str) -> dict[str, object]:
        """The next event of that name; lines in between are skipped. The test's timeout bounds the wait."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = json.loads(line)
            if found["event"] == name:
                return found
        raise AssertionError(f"ended without {name}: {self.process.stderr.read() if self.process.stderr else ''}")

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=30)
        assert CANARY not in err
        assert "Traceback" not in err
        return self.process.returncode, err


@contextmanager
def daemon(cli: Cli, *arguments: object, env: dict[str, str] | None = None) -> Iterator[Daemon]:
    process = subprocess.Popen(
        cli.command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=cli.env | (env or {}),
        cwd=cli.home,
        stdin=subprocess.DEVNULL,
    )
    try:
        yield Daemon(process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_appears_is_published_and_followed(cli, tmp_path, number):
    at = ("--store", (tmp_path / "store").as_uri(), "--run", "watched")
    inbox = tmp_path / "inbox"
    first = weights(3, 4000)
    save(inbox / "step-1", first)
    publishing = ("publish", "--watch", inbox, *at, "--cache", tmp_path / "a", "--poll-s", 0.1, "--json")
    following = ("subscribe", *at, "--out", tmp_path / "out", "--cache", tmp_path / "b", "--poll-s", 0.1, "--json")
    with daemon(cli, *publishing) as publisher, daemon(cli, *following) as subscriber:
        assert publisher.event("published")["version"] == 1
        assert subscriber.event("version")["version"] == 1
        (inbox / "step-2").mkdir()  # not a checkpoint yet
        save(tmp_path / "step-2", moved(first, 4))
        shutil.copytree(tmp_path / "step-2", inbox / "step-2", dirs_exist_ok=True)
        published = publisher.event("published")
        assert (published["version"], published["step"], published["form"]) == (2, 2, "delta")
        event = subscriber.event("version")
        assert (event["version"], event["manifest"]) == (2, published["manifest"])
        assert contents(tmp_path / "out" / "current") == contents(tmp_path / "step-2")
        code, err = subscriber.stop(number)
        assert (code, "stopped; version 2 is held" in err) == (0, True)
        assert publisher.stop(number)[0] == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")) == ["1", "2", "current"]


def test_a_watcher_passes_over_a_broken_checkpoint(cli, tmp_path):
    inbox = tmp_path / "inbox"
    broken = save(inbox / "step-1", weights(3, 400))
    (broken / "model-00002-of-00002.safetensors").unlink()
    save(inbox / "step-2", weights(3, 400))
    at = ("--store", (tmp_path / "store").as_uri(), "--run", "watched")
    with daemon(cli, "publish", "--watch", inbox, *at, "--cache", tmp_path / "a", "--poll-s", 0.1, "--json") as publisher:
        assert publisher.event("published")["step"] == 2
        assert publisher.stop()[0] == 0


def test_a_first_interrupt_says_what_it_waits_for(cli, tmp_path):
    save(tmp_path / "inbox" / "step-1", weights(3, 400))
    at = ("--store", (tmp_path / "store").as_uri(), "--run", "watched", "--cache", tmp_path / "cache")
    slow = {"WEIGHTSYNC_FAILPOINTS": "publish.before_head=sleep:3000"}
    with daemon(cli, "publish", "--watch", tmp_path / "inbox", *at, "--poll-s", 0.1, env=slow) as publisher:
        while not list((tmp_path / "store").glob("watched/shards/*/*")):
            assert publisher.process.poll() is None
        code, err = publisher.stop(signal.SIGINT)
    assert (code, "finishing version 1, press Ctrl-C again to stop now\n" in err) == (0, True)
    assert (tmp_path / "store" / "watched" / "channels" / "latest" / "head").is_file()


def test_a_fenced_watcher_ends(cli, tmp_path):
    inbox = tmp_path / "inbox"
    save(inbox / "step-1", weights(3, 400))
    at = ("--store", (tmp_path / "store").as_uri(), "--run", "watched")
    with daemon(cli, "publish", "--watch", inbox, *at, "--cache", tmp_path / "a", "--poll-s", 0.1, "--json") as publisher:
        publisher.event("published")
        newer = save(tmp_path / "step-2", moved(weights(3, 400), 5))
        assert cli("publish", newer, *at, "--cache", tmp_path / "b").out == "2\n"
        save(inbox / "step-3", weights(4, 400))
        out, _ = publisher.process.communicate(timeout=30)
        assert publisher.process.returncode == 1
        assert json.loads(out.splitlines()[-1])["error"]["kind"] == "fenced"


def test_a_subscriber_that_cannot_write_its_first_version_does_not_say_that_it_serves_it(cli, shared, tmp_path):
    (tmp_path / "out" / "4").mkdir(parents=True)
    (tmp_path / "out" / "4" / "mine").write_text("")
    with daemon(
        cli, "subscribe", *shared.at, "--out", tmp_path / "out", "--cache", tmp_path / "b", "--poll-s", 0.05, "--json"
    ) as subscriber:
        line = next(iter(subscriber.process.stderr or ()))
        while "was not written by this command" not in line:
            line = next(iter(subscriber.process.stderr or ()))
        assert "nothing is served yet" in line
        code, err = subscriber.stop()
    assert (code, "no version was served" in err) == (0, True)


def test_a_watch_says_which_checkpoints_count_as_published(cli, shared, tmp_path):
    shutil.copytree(shared.path, tmp_path / "store")
    at = ("--store", (tmp_path / "store").as_uri(), "--run", "tuning")
    (tmp_path / "watched").mkdir()
    with daemon(cli, "publish", "--watch", tmp_path / "watched", *at, "--cache", tmp_path / "c", "--json") as publisher:
        assert "checkpoints there up to that step count as published" in next(iter(publisher.process.stderr or ()))
        assert publisher.stop()[0] == 0


def test_a_second_publisher_on_a_host_is_not_sent_to_another_directory(cli, shared, tmp_path):
    shutil.copytree(shared.path, tmp_path / "store")
    at = ("--store", (tmp_path / "store").as_uri(), "--run", "tuning", "--cache", tmp_path / "c")
    (tmp_path / "watched").mkdir()
    with daemon(cli, "publish", "--watch", tmp_path / "watched", *at, "--json") as publisher:
        next(iter(publisher.process.stderr or ()))  # it holds the run now
        error = cli("publish", shared.checkpoints[1], *at, "--json", code=1).json["error"]
        assert (error["kind"], error["remedy"]) == ("conflict", "stop that publisher first")
        assert publisher.stop()[0] == 0


def test_a_subscriber_serves_on_when_the_store_goes_away(cli, shared, tmp_path):
    shutil.copytree(shared.path, tmp_path / "store")
    at = ("--store", (tmp_path / "store").as_uri(), "--run", "tuning")
    with daemon(cli, "subscribe", *at, "--out", tmp_path / "out", "--cache", tmp_path / "b", "--poll-s", 0.05, "--json") as subscriber:
        assert subscriber.event("version")["version"] == 4
        shutil.rmtree(tmp_path / "store")
        line = next(iter(subscriber.process.stderr or ()))
        while "served on" not in line:
            line = next(iter(subscriber.process.stderr or ()))
        assert contents(tmp_path / "out" / "current") == contents(shared.checkpoints[4])
        assert subscriber.stop()[0] == 0
