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


@pytest.mark.parametrize(
    "server", ["http://cp:7443", "cp", "cp:", "cp:x", ":7443", "cp:0", "cp:65536", "::1:7443", "cp:7443/v1", "grpc://cp:7443"]
)
def test_a_server_that_is_none_is_told_before_anything_is_done(cli, shared, tmp_path, server):
    before = (shared.path / RUN / "channels" / "latest" / "head").read_bytes()
    error = cli("publish", "--watch", tmp_path, *shared.at, "--server", server, "--json", code=2).json["error"]
    assert (error["kind"], "HOST:PORT" in error["message"]) == ("invalid", True)
    assert (shared.path / RUN / "channels" / "latest" / "head").read_bytes() == before


def test_metadata_services_are_no_stores(cli):
    command = ("versions", "--store", "s3://bucket/x?endpoint=http://169.254.169.254", "--run", RUN, "--json")
    error = cli(*command, code=2).json["error"]
    assert (error["kind"], "link-local" in error["message"]) == ("invalid", True)


def test_publish_versions_and_status_show_the_same_ratio(cli, shared, copy, tmp_path):
    done = cli("publish", save(tmp_path / "step-50", weights(7)), *copy.at, "--json").json
    listed = cli("versions", *copy.at, "--json").json["versions"]
    seen = cli("status", *copy.at, "--json").json["versions"][-1]
    assert done["payload_ratio"] == next(one for one in listed if one["version"] == done["version"])["payload_ratio"]
    assert done["payload_ratio"] == seen["checkpoint_bytes"] / seen["payload_bytes"]


def test_a_key_is_made_once_and_signs(cli, copy, tmp_path):
    key, trusted = tmp_path / "publisher.key", tmp_path / "trusted.toml"
    trusted.write_text(cli("keygen", "--out", key).out)
    assert key.stat().st_mode & 0o777 == 0o600
    secret = key.read_text()
    assert cli("keygen", "--out", key, "--json", code=2).json["error"]["kind"] == "invalid"
    assert cli("keygen", "--out", tmp_path / "none" / "key", "--json", code=2).json["error"]["kind"] != "bug"
    assert cli("keygen", "--out", tmp_path / "other", "--role", "king", "--json", code=2).json["error"]["kind"] == "invalid"
    assert key.read_text() == secret
    at = ("--store", (tmp_path / "signed").as_uri(), "--run", RUN, "--trusted-keys", trusted)
    assert cli("publish", save(tmp_path / "step-1", weights(3, 400)), *at, "--key", key).out == "1\n"
    assert cli("verify", *at, "--json").json["ok"]
    cli("keygen", "--out", tmp_path / "stranger")
    error = cli("publish", save(tmp_path / "step-2", weights(4, 400)), *at, "--key", tmp_path / "stranger", "--json", code=3).json["error"]
    assert error["kind"] == "denied"
