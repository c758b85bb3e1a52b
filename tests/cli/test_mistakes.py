"""What a slip of the hand leads to: a mistyped run, another model's checkpoint, the same command twice."""

import shutil

import pytest

from tests.cli.tools import RUN, Shared, save, save_file, weights


@pytest.fixture
def copy(shared, tmp_path) -> Shared:
    shutil.copytree(shared.path, tmp_path / "store")
    return Shared((tmp_path / "store").as_uri(), tmp_path / "store", shared.checkpoints)


@pytest.fixture
def other(tmp_path):
    """A checkpoint of another model: no tensor has the name of one of ours."""
    return save_file(tmp_path / "step-50.safetensors", {f"decoder.{name}": values for name, values in weights(9, 400).items()})


def test_a_run_that_publishing_makes_is_said_to_be_new(cli, tmp_path):
    url, checkpoint = (tmp_path / "store").as_uri(), save(tmp_path / "step-1", weights(1, 400))
    first, second = (cli("publish", checkpoint, "--store", url, "--run", "tunign", "--json") for _ in range(2))
    assert (first.json["new_run"], second.json["new_run"]) == (True, False)
    assert first.err.startswith(f"run 'tunign' is new in {url}\n")
    assert "is new" not in second.err


def test_another_models_checkpoint_is_refused_unless_it_is_meant(cli, copy, other):
    error = cli("publish", other, *copy.at, "--json", code=2).json["error"]
    assert error["kind"] == "invalid"
    assert "'decoder.empty'" in error["message"]
    assert f"version 4 of run '{RUN}' (4, first 'empty')" in error["message"]
    assert all(way in error["remedy"] for way in ("--run", "--replace-model"))
    assert len(cli("versions", *copy.at, "--json").json["versions"]) == 4
    found = cli("publish", other, *copy.at, "--replace-model", "--json").json
    assert (found["version"], found["form"]) == (5, "snapshot")
    assert any("new layout" in note for note in found["notes"])


@pytest.mark.parametrize("verb", [("promote", 2), ("rollback", "--to", 2)], ids=["promote", "rollback"])
def test_moving_a_channel_to_where_it_is_changes_nothing(cli, copy, verb):
    command = (*verb, "--channel", "serving", *copy.at)
    assert cli(*command).out == "serving: 2 already, sequence 1: nothing to do\n"
    found = cli(*command, "--json").json
    assert (found["changed"], found["from"], found["version"], found["sequence"]) == (False, 2, 2, 1)
    assert cli(*command, "--expected-sequence", 0, "--json", code=1).json["error"]["kind"] == "conflict"
    assert cli("promote", 3, "--channel", "serving", *copy.at, "--json").json["changed"]


def test_a_rollback_only_goes_back(cli, shared, tmp_path):
    shutil.copytree(shared.path, tmp_path / "store")
    at = ("--store", (tmp_path / "store").as_uri(), "--run", RUN)
    error = cli("rollback", "--channel", "serving", "--to", 3, *at, "--json", code=2).json["error"]
    assert (error["kind"], "promote" in error["remedy"]) == ("invalid", True)


def test_a_channel_that_is_not_there_is_told_beside_those_that_are(cli, shared, tmp_path):
    error = cli("subscribe", "--once", "--channel", "servign", *shared.at, "--out", tmp_path / "out", "--json", code=2).json["error"]
    assert error["remedy"].endswith("channels of this run: latest, serving")


def test_a_watcher_without_its_directory_claims_nothing(cli, shared, tmp_path):
    before = (shared.path / RUN / "channels" / "latest" / "head").read_bytes()
    error = cli("publish", "--watch", tmp_path / "nowhere", *shared.at, "--json", code=2).json["error"]
    assert (error["kind"], "nowhere" in error["message"]) == ("invalid", True)
    assert (shared.path / RUN / "channels" / "latest" / "head").read_bytes() == before
