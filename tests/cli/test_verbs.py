"""Each verb on one shared store: what people see, and the document that scripts get."""

import json
import shutil

import pytest

from tests.cli.tools import RUN, contents, save, save_file, weights
from weightsync.trust.signing import SigningKey

DELTA_LANES = 40_064


def test_versions_for_people(cli, shared):
    lines = cli("versions", *shared.at).out.splitlines()
    assert lines[0].split() == ["version", "step", "epoch", "parent", "changed", "bytes", "payload", "ratio", "age", "channels"]
    assert [line.split()[:2] for line in lines[1:]] == [["1", "10"], ["2", "20"], ["3", "30"], ["4", "40"]]
    assert lines[2].endswith("serving")
    assert lines[4].endswith("latest")


def test_versions_for_scripts(cli, shared):
    found = cli("versions", *shared.at, "--json").json
    assert (found["run"], found["store"]) == (RUN, shared.url)
    assert found["channels"] == {"latest": 4, "serving": 2}
    assert [(v["version"], v["step"], v["parent"], v["form"]) for v in found["versions"]] == [
        (1, 10, None, "snapshot"),
        (2, 20, 1, "delta"),
        (3, 30, 2, "delta"),
        (4, 40, 3, "delta"),
    ]
    assert found["versions"][1]["lanes"] == DELTA_LANES
    assert 0.008 < found["versions"][1]["changed"] < 0.012
    assert (found["versions"][3]["changed_lanes"], found["versions"][3]["payload_bytes"], found["versions"][3]["payload_ratio"]) == (
        0,
        0,
        None,
    )
    assert found["versions"][2]["root"] == found["versions"][3]["root"] != found["versions"][1]["root"]


def test_versions_can_be_limited(cli, shared):
    assert [v["version"] for v in cli("versions", *shared.at, "--limit", 2, "--json").json["versions"]] == [3, 4]


def test_show(cli, shared):
    found = cli("show", 2, *shared.at, "--tensors", "--json").json
    assert (found["version"], found["parent"], found["channels"]) == (2, 1, ["serving"])
    assert [p["form"] for p in found["payloads"]] == ["delta"]
    assert sum(shard["bytes"] for p in found["payloads"] for shard in p["shards"]) == found["payload_bytes"] == found["objects"]["shards"]
    assert {f["name"] for f in found["files"]} == set(contents(shared.checkpoints[2]))
    assert {t["name"]: t["shape"] for t in found["tensors"]}["empty"] == [0, 4]
    text = cli("show", "serving", *shared.at).out
    assert f"version     2 of run {RUN}" in text
    assert "model-00001-of-00002.safetensors" in text


def test_diff_of_versions(cli, shared):
    found = cli("diff", 1, 2, *shared.at, "--json").json
    assert not found["identical"]
    assert found["total"]["changed_lanes"] == cli("show", 2, *shared.at, "--json").json["changed_lanes"]
    assert found["total"]["ulps"]["1"] == found["total"]["changed_lanes"]
    by_name = {one["name"]: one["changed_lanes"] for one in found["tensors"]}
    assert by_name["position_ids"] == by_name["empty"] == 0
    text = cli("diff", 1, 2, *shared.at).out
    assert "1 ULP" in text
    assert "2 of 4 tensors are the same" in text


def test_diff_of_a_version_and_a_directory(cli, shared):
    assert cli("diff", "latest", shared.checkpoints[3], *shared.at, "--json").json["identical"]


def test_diff_of_directories_with_other_tensors_needs_no_store(cli, tmp_path):
    old, new = (
        save(tmp_path / "old", weights(0, 400)),
        save_file(tmp_path / "new.safetensors", {"position_ids": weights(0)["position_ids"]}),
    )
    found = cli("diff", old, new, "--json").json
    assert "removed" in found["layout_change"]
    assert found["total"]["changed_lanes"] == 0
    assert not found["identical"]


@pytest.mark.parametrize(("version", "number"), [("1", 1), ("3", 3), ("serving", 2)])
def test_restore_gives_back_the_files(cli, shared, tmp_path, version, number):
    found = cli("restore", "--version", version, "--out", tmp_path / "out", *shared.at, "--json").json
    assert contents(tmp_path / "out") == contents(shared.checkpoints[number])
    assert (found["version"], found["files"]) == (number, 4)
    assert found["bytes"] == sum(map(len, contents(tmp_path / "out").values()))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_verify_all(cli, shared):
    found = cli("verify", *shared.at, "--json").json
    assert found["ok"]
    assert [one["version"] for one in found["versions"]] == [1, 2, 3, 4]
    assert "4 versions looked at, nothing wrong" in cli("verify", *shared.at).out


def test_verify_a_checkpoint(cli, shared):
    assert cli("verify", "--version", 2, "--checkpoint", shared.checkpoints[2], *shared.at, "--json").json["ok"]
    wrong = cli("verify", "--version", 2, "--checkpoint", shared.checkpoints[1], *shared.at, "--json", code=1).json
    assert not wrong["ok"]
    assert {one["kind"] for one in wrong["versions"][0]["findings"]} == {"corrupt"}
    text = cli("verify", "--version", 2, "--checkpoint", shared.checkpoints[1], *shared.at, code=1).out
    assert (text.count("differs from the version"), text.count("fix: ")) == (2, 1)


def test_publish_a_single_file_without_index(cli, tmp_path):
    file = save_file(tmp_path / "step_7.safetensors", weights(5, 400))
    found = cli("publish", file, "--store", (tmp_path / "store").as_uri(), "--run", "one", "--note", "a remark", "--json").json
    assert (found["version"], found["step"], found["form"]) == (1, 7, "snapshot")
    assert found["total_bytes"] == sum(found["uploaded"].values())
    shown = cli("show", "--store", (tmp_path / "store").as_uri(), "--run", "one", "--json").json
    assert (shown["note"], shown["step"]) == ("a remark", 7)


def test_subscribe_once(cli, shared, tmp_path):
    where = ("--out", tmp_path / "w", "--cache", tmp_path / "cache", "--channel", "serving", *shared.at)
    found = cli("subscribe", *where, "--once", "--json").json
    assert (found["version"], found["out"]) == (2, str(tmp_path / "w" / "2"))
    assert found["bytes_fetched"] > 0
    assert contents(tmp_path / "w" / "current") == contents(shared.checkpoints[2])
    assert "held already, " in cli("subscribe", *where, "--once").out
    shutil.rmtree(tmp_path / "w")
    assert f"held already, now written to {tmp_path / 'w' / '2'}" in cli("subscribe", *where, "--once").out


def test_channels_are_moved_and_moved_back(cli, shared, tmp_path):
    shutil.copytree(shared.path, tmp_path / "store")
    at = ("--store", (tmp_path / "store").as_uri(), "--run", RUN)
    moved = cli("promote", "latest", "--channel", "canary", *at, "--who", "me", "--why", "looks good", "--json").json
    assert (moved["from"], moved["version"], moved["sequence"], moved["who"], moved["why"]) == (None, 4, 1, "me", "looks good")
    back = cli("rollback", "--channel", "canary", "--to", 3, "--expected-sequence", 1, *at, "--json").json
    assert (back["from"], back["version"], back["sequence"]) == (4, 3, 2)
    stale = cli("rollback", "--channel", "canary", "--to", 2, "--expected-sequence", 1, *at, "--json", code=1)
    assert stale.json["error"]["kind"] == "conflict"
    assert cli("rollback", "--channel", "latest", "--to", 2, *at).out.startswith("latest: 4 -> 2")
    assert cli("publish", shared.checkpoints[1], *at).out == "5\n"
    assert cli("show", 5, *at, "--json").json["parent"] == 2


@pytest.mark.parametrize("plan", [(), ("--plan",)], ids=["move", "plan"])
def test_a_rollback_of_a_misspelt_channel_makes_none(cli, shared, tmp_path, plan):
    shutil.copytree(shared.path, tmp_path / "store")
    at = ("--store", (tmp_path / "store").as_uri(), "--run", RUN)
    error = cli("rollback", "--channel", "servign", "--to", 1, *plan, *at, "--json", code=2).json["error"]
    assert (error["kind"], "'servign'" in error["message"]) == ("not_found", True)
    assert "servign" not in cli("versions", *at, "--json").json["channels"]


def test_doctor(cli, shared, tmp_path):
    found = cli("doctor", *shared.at, "--json").json
    assert found["ok"]
    by_name = {one["name"]: one for one in found["findings"]}
    assert by_name["writes"]["detail"].startswith("full")
    assert by_name["channel latest"]["detail"].startswith("version 4")
    assert by_name["objects"]["detail"] == "3 shards that lead to version 4 are there"
    assert by_name["run"]["detail"] == "'tuning'"
    assert {"versions", "kernel", "cache", "images", "store", "clock", "run", "channel serving"} <= by_name.keys()
    before = contents(shared.path)
    cli("doctor", *shared.at, "--read-only")
    assert contents(shared.path) == before


def test_doctor_alone_looks_at_this_machine(cli):
    assert "only this machine" in cli("doctor").out


def test_settings_come_from_flags_then_the_environment_then_a_file(cli, shared, tmp_path):
    (tmp_path / "file.toml").write_text(f'store = "{shared.url}"\nrun = "nobody"\n')
    env = {"WEIGHTSYNC_RUN": RUN}
    assert cli("versions", "--config", tmp_path / "file.toml", "--json", env=env).json["run"] == RUN
    cli("versions", "--config", tmp_path / "file.toml", code=2)
    assert cli("versions", "--config", tmp_path / "file.toml", "--run", RUN, "--json", env={"WEIGHTSYNC_RUN": "x"}).json["run"] == RUN


def test_documents_are_one_line_of_json(cli, shared):
    assert isinstance(json.loads(cli("versions", *shared.at, "--json").out), dict)


def test_signed_runs_are_read_with_the_right_keys_only(cli, tmp_path):
    ours, other = SigningKey(bytes(32)), SigningKey(bytes([1] * 32))
    (tmp_path / "key").write_text("00" * 32)
    for name, key in (("ours.toml", ours), ("other.toml", other)):
        (tmp_path / name).write_text(f'publisher = ["{key.public.raw.hex()}"]\n')
    at = ("--store", (tmp_path / "store").as_uri(), "--run", "signed")
    trust, distrust = ("--trusted-keys", tmp_path / "ours.toml"), ("--trusted-keys", tmp_path / "other.toml")
    checkpoint = save(tmp_path / "step-1", weights(8, 400))
    assert cli("publish", checkpoint, *at, *trust, "--json", code=3).json["error"]["kind"] == "denied"
    assert cli("publish", checkpoint, *at, *trust, "--key", tmp_path / "key").out == "1\n"
    assert cli("verify", *at, *trust, "--json").json["ok"]
    assert cli("restore", "--version", 1, "--out", tmp_path / "out", *at, *distrust, "--json", code=1).json["error"]["kind"] == "corrupt"
    assert not (tmp_path / "out").exists()


def test_verify_a_sample(cli, shared):
    found = cli("verify", *shared.at, "--sample", 2, "--json").json
    assert (found["ok"], len(found["versions"]), sum(one["rebuilt"] for one in found["versions"])) == (True, 4, 2)
    assert sum(one["rebuilt"] for one in cli("verify", *shared.at, "--sample", "1%", "--json").json["versions"]) == 1
    assert cli("verify", *shared.at, "--sample", 3).out.count("(not rebuilt)") == 1
    for wrong in ("0", "101%", "-3", "1.5", "many", "nan", "1e3"):
        assert cli("verify", *shared.at, "--sample", wrong, "--json", code=2).json["error"]["kind"] == "invalid"
    cli("verify", *shared.at, "--sample", 1, "--version", 2, code=2)


def test_a_sample_sees_what_is_missing_anywhere(cli, shared, tmp_path):
    shutil.copytree(shared.path, tmp_path / "store")
    at = ("--store", (tmp_path / "store").as_uri(), "--run", RUN)
    for directory in (tmp_path / "store" / RUN / "shards").iterdir():
        for shard in directory.iterdir():
            shard.unlink()
    found = cli("verify", *at, "--sample", 1, "--json", code=1).json
    *others, last = found["versions"]
    assert not any(one["ok"] for one in others)
    assert last["ok"] is not last["rebuilt"]  # it changed nothing and has no shards of its own: only who rebuilds it misses those before


def test_verify_the_image_of_a_subscriber(cli, shared, tmp_path):
    images = {"WEIGHTSYNC_IMAGES": str(tmp_path / "images")}
    cli("subscribe", "--once", *shared.at, "--out", tmp_path / "out", env=cli.env | images)
    (image,) = (tmp_path / "images").iterdir()
    found = cli("verify", *shared.at, "--image", image, "--json").json
    assert (found["ok"], found["versions"][0]["version"]) == (True, 4)
    assert not cli("verify", *shared.at, "--image", image, "--version", 1, "--json", code=1).json["ok"]
    (weights_file,) = (path for path in image.iterdir() if path.name.startswith("image"))
    with weights_file.open("r+b") as file:
        file.seek(5000)
        byte = file.read(1)
        file.seek(5000)
        file.write(bytes([byte[0] ^ 1]))
    assert "differs from the version" in cli("verify", *shared.at, "--image", image, code=1).out
    missing = cli("verify", *shared.at, "--image", tmp_path / "none", "--json", code=2, env=cli.env | images).json
    assert str(tmp_path / "images") in missing["error"]["remedy"]


def test_restore_to_one_file(cli, shared, tmp_path):
    out = tmp_path / "two.safetensors"
    assert cli("restore", "--version", 2, "--out", out, *shared.at, "--json").json["files"] == 1
    assert cli("verify", "--version", 2, "--checkpoint", out, *shared.at, "--json").json["ok"]
    assert not cli("verify", "--version", 1, "--checkpoint", out, *shared.at, "--json", code=1).json["ok"]
    cli("restore", "--version", 2, "--out", out, *shared.at, code=2)
