"""Paths shown, forks, checkpoints that are versions already, and fleets that go back."""

import shutil
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.cli.tools import RUN, contents, moved, save, weights
from weightsync.cli import fleet_wait
from weightsync.cli import status as status_verb
from weightsync.telemetry.facts import ChannelFact, RunFacts, SubscriberFact
from weightsync.testing.clock import ManualClock


@pytest.fixture(scope="module")
def made(cli, tmp_path_factory):
    """A store of three versions, and their checkpoints."""
    base = tmp_path_factory.mktemp("made")
    tensors, found = weights(1), {}
    for version in (1, 2, 3):
        found[version] = save(base / f"step-{version}", tensors)
        tensors = moved(tensors, version)
        at = ("--store", f"file://{base}/store", "--run", RUN, "--cache", base / "trainer")
        assert cli("publish", found[version], *at).out == f"{version}\n"
    return base / "store", found


@pytest.fixture
def run(made, tmp_path):
    """A copy of it: the flags that name it, and the checkpoints."""
    store, checkpoints = made
    shutil.copytree(store, tmp_path / "store")
    return ("--store", f"file://{tmp_path}/store", "--run", RUN), checkpoints


def test_a_path_is_explained(cli, run):
    at, _ = run
    found = cli("show", "--path", "nothing", "latest", *at, "--json").json
    assert [(step["form"], step["base"], step["target"]) for step in found["steps"]] == [
        ("snapshot", 0, 1),
        ("delta", 1, 2),
        ("delta", 2, 3),
    ]
    assert found["bytes"] == sum(step["bytes"] for step in found["steps"]) == found["instead"]["every delta"]
    text = cli("show", "--path", 1, 3, *at)
    assert "delta to 2" in text.out
    assert "from nothing:" in text.out
    assert "held already" in cli("show", "--path", 2, 2, *at).out
    assert cli("show", "--path", 1, 99, *at, "--json", code=2).json["error"]["kind"] == "not_found"


def test_publishing_goes_on_from_an_older_version(cli, run, tmp_path):
    at, checkpoints = run
    fork = save(tmp_path / "fork-2", moved(weights(1), 77))
    done = cli("publish", fork, "--base", checkpoints[1], "--cache", tmp_path / "another", *at, "--json")
    assert (done.json["version"], done.json["form"]) == (4, "delta")
    assert f"{checkpoints[1]} is version 1" in done.err
    assert cli("show", *at, "--json").json["parent"] == 1
    done = cli("publish", checkpoints[3], "--parent", 2, "--cache", tmp_path / "third", *at, "--json").json
    assert (done["version"], done["form"]) == (5, "delta")
    assert cli("show", *at, "--json").json["parent"] == 2
    assert "is not 9" not in cli("publish", fork, "--parent", 9, *at, code=2).err


def test_a_checkpoint_on_this_host_saves_the_download(cli, run, tmp_path):
    at, checkpoints = run
    here = ("--cache", tmp_path / "host", *at)
    done = cli("subscribe", "--once", "--adopt", checkpoints[3], "--out", tmp_path / "out", *here, "--json")
    assert f"{checkpoints[3]} is version 3" in done.err
    assert done.json.get("bytes_fetched", 0) == 0
    assert contents(tmp_path / "out" / "3") == contents(checkpoints[3])


def test_a_host_goes_back_without_the_network(cli, run, tmp_path):
    at, checkpoints = run
    here = ("--channel", "serving", "--cache", tmp_path / "host", "--out", tmp_path / "out", *at, "--json")
    for version in (1, 3):
        cli("promote", version, "--channel", "serving", *at)
        cli("subscribe", "--once", *here)
    back = cli("rollback", "--channel", "serving", "--to", 1, "--wait", 1, *at, "--json")
    assert back.json["complete"] is None
    assert "weightsync status --server" in back.err
    # What was fetched for the cache of objects is out of the way: it is the image that goes back.
    for cached in (tmp_path / "host" / "objects").iterdir():
        cached.unlink()
    done = cli("subscribe", "--once", *here).json
    assert (done["version"], done["bytes_fetched"], done["path"]) == (1, 0, [])
    assert contents(tmp_path / "out" / "1") == contents(checkpoints[1])


# ------------------------------------------------------------------------------------------------- waiting for a fleet


def subscriber(name: str, served: int, channel: str = "serving") -> SubscriberFact:
    return SubscriberFact(name, "eu", "directory", channel, served=served)


def facts(*subscribers: SubscriberFact, sequence: int = 5) -> RunFacts:
    return RunFacts("run", 0.0, (ChannelFact("serving", 2, sequence, 1, 0.0, "me"),), (), subscribers)


class Fleet:
    """What is seen look by look; the last one stays."""

    def __init__(self, monkeypatch, *seen: RunFacts) -> None:
        self.seen, self.notes = list(seen), []
        self.settings = SimpleNamespace(server="cp:1")
        self.out = SimpleNamespace(note=self.notes.append)

        @contextmanager
        def observer(context, limit):
            yield lambda: self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]

        monkeypatch.setattr(status_verb, "observer", observer)

    def wait(self, seconds: float = 60.0) -> dict:
        return fleet_wait.until_served(self, "serving", 5, 2, seconds, clock=ManualClock())


def test_until_all_serve_it(monkeypatch):
    fleet = Fleet(
        monkeypatch,
        facts(subscriber("a", 3), subscriber("b", 3), subscriber("c", 9, "latest")),
        facts(subscriber("a", 2), subscriber("b", 3)),
        facts(subscriber("a", 2), subscriber("b", 2)),
    )
    assert fleet.wait() == {"complete": True, "subscribers": 2, "late": []}
    assert [note.partition(" subscribers")[0] for note in fleet.notes] == ["0 of 2", "1 of 2", "2 of 2"]
    assert fleet.notes[1].endswith("not yet: b")


def test_some_do_not_in_time(monkeypatch):
    fleet = Fleet(monkeypatch, facts(subscriber("a", 2), subscriber("b", 3)))
    assert fleet.wait(3.0) == {"complete": False, "subscribers": 2, "late": ["b"]}


def test_the_channel_is_moved_on(monkeypatch):
    fleet = Fleet(monkeypatch, facts(subscriber("a", 3)), replace(facts(subscriber("a", 3), sequence=6)))
    assert fleet.wait()["complete"] is False
    assert "moved on" in fleet.notes[-1]
