"""Whatever is wrong: the exit code, one JSON document, a sentence with the remedy, no traceback, no secret, nothing left behind."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.tools import CANARY, RUN, Shared, contents, save, save_file, weights

MISSING = "/does/not/exist"

# arguments, exit code, kind of error; {store} and {dir} are filled in
MATRIX = [
    ("versions --bad", 2, "usage"),
    ("nonsense", 2, "usage"),
    ("diff 1", 2, "usage"),
    ("restore --version 1 {at}", 2, "usage"),
    ("versions --limit x {at}", 2, "usage"),
    ("versions --run tuning", 2, "invalid"),
    ("versions --store {store}", 2, "invalid"),
    ("versions --store nonsense --run tuning", 2, "invalid"),
    ("versions --store ftp://host/path --run tuning", 2, "invalid"),
    ("versions --store file:relative --run tuning", 2, "invalid"),
    ("versions --store s3://user:" + CANARY + "@bucket/x --run tuning", 2, "invalid"),
    ("versions --store {store} --run ../tuning", 2, "invalid"),
    ("versions --store {store} --run nobody", 2, "not_found"),
    ("versions --store file:///does/not/exist --run tuning", 2, "not_found"),
    ("versions {at} --config /does/not/exist", 2, "not_found"),
    ("versions {at} --log-level loud", 2, "invalid"),
    ("show 99 {at}", 2, "not_found"),
    ("show 0 {at}", 2, "not_found"),
    ("show nochannel {at}", 2, "not_found"),
    ("show no/channel {at}", 2, "invalid"),
    ("diff 1 99 {at}", 2, "not_found"),
    ("diff 1 /does/not/exist {at}", 2, "not_found"),
    ("restore --version 99 --out {dir}/out {at}", 2, "not_found"),
    ("restore --version 1 --out {dir} {at}", 2, "invalid"),
    ("verify --version 99 {at}", 2, "not_found"),
    ("verify --checkpoint /does/not/exist {at}", 2, "invalid"),
    ("verify --store {store} --run nobody", 2, "not_found"),
    ("publish {at}", 2, "invalid"),
    ("publish /does/not/exist {at}", 2, "not_found"),
    ("publish {dir} {at}", 2, "invalid"),
    ("publish {dir} --watch {dir} {at}", 2, "invalid"),
    ("publish --watch {dir} --step 1 {at}", 2, "invalid"),
    ("subscribe --once --store {store} --run nobody", 2, "not_found"),
    ("subscribe --once --channel nobody {at}", 2, "not_found"),
    ("promote 99 --channel serving {at}", 2, "not_found"),
    ("rollback --channel serving --to 1 --expected-sequence 7 {at}", 1, "conflict"),
    ("versions {at} --trusted-keys /does/not/exist", 2, "invalid"),
    ("demo --checkpoints /does/not/exist", 2, "invalid"),
    ("demo --checkpoints {empty}", 2, "invalid"),
    ("demo --store mem://x --checkpoints {one}", 2, "invalid"),
]


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """A directory with something in it."""
    path = tmp_path_factory.mktemp("taken")
    (path / "notes.txt").write_text("mine")
    return path


@pytest.mark.parametrize(("line", "code", "kind"), MATRIX, ids=[line for line, _, _ in MATRIX])
def test_matrix(cli, shared, taken, tmp_path, line, code, kind):  # noqa: PLR0917  fixtures
    filled = line.format(at=" ".join(shared.at), store=shared.url, dir=taken, empty=tmp_path, one=shared.checkpoints[1].parent)
    result = cli(*filled.split(), "--json", code=code)
    error = result.json["error"]
    assert error["kind"] == kind
    assert error["message"]
    assert error["remedy"]
    assert result.err.startswith("error: ")
    assert "  fix: " in result.err
    assert contents(taken) == {"notes.txt": b"mine"}


def copied(shared: Shared, tmp_path: Path) -> Shared:
    shutil.copytree(shared.path, tmp_path / "store")
    return Shared((tmp_path / "store").as_uri(), tmp_path / "store", shared.checkpoints)


def objects(store: Shared, pattern: str) -> list[Path]:
    found = sorted(path for path in (store.path / RUN).glob(pattern) if path.is_file())
    assert found
    return found


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_in_a_shard(cli, shared, tmp_path):
    store = copied(shared, tmp_path)
    flip(objects(store, "shards/*-2-1/*")[0])
    found = cli("verify", *store.at, "--json", code=1).json
    assert [one["ok"] for one in found["versions"]] == [True, False, False, False]
    assert found["damage"][0]["versions"] == [2, 3, 4]
    assert len(found["damage"]) == 1
    result = cli("verify", *store.at, code=1)
    lines = result.out.splitlines()
    assert lines[4:7] == ["BAD  version 2", "BAD  version 3", "BAD  version 4"]
    assert [line.strip() for line in lines[9:11]] == ["needed by versions 2 to 4", "fix: bring it back with `weightsync repair`"]
    assert lines[-1] == "4 versions looked at, 1 thing wrong"
    assert result.out.count("shard 'tuning/shards/") == 1
    assert result.err == ""
    assert cli("restore", "--version", 3, "--out", tmp_path / "out", *store.at, "--json", code=1).json["error"]["kind"] == "corrupt"
    assert not (tmp_path / "out").exists()
    assert cli("verify", "--version", 1, *store.at).code == 0


def test_a_cut_manifest(cli, shared, tmp_path):
    store = copied(shared, tmp_path)
    path = store.path / RUN / "versions" / "3" / "manifest"
    path.write_bytes(path.read_bytes()[:-9])
    assert [one["ok"] for one in cli("verify", *store.at, "--json", code=1).json["versions"]][:3] == [True, True, False]
    assert cli("show", 3, *store.at, "--json", code=1).json["error"]["kind"] == "corrupt"


@pytest.mark.parametrize("name", ["channels/latest/head", "run.json"])
def test_a_damaged_record_of_the_run(cli, shared, tmp_path, name):
    store = copied(shared, tmp_path)
    flip(store.path / RUN / name)
    for verb in ("versions", "verify", "doctor"):
        cli(verb, *store.at, "--json", code=1)


def test_a_missing_shard_is_no_success(cli, shared, tmp_path):
    store = copied(shared, tmp_path)
    objects(store, "shards/*-2-1/*")[0].unlink()
    assert not cli("verify", "--version", 2, *store.at, "--json", code=1).json["ok"]
    (wrong,) = (one for one in cli("doctor", *store.at, "--json", code=1).json["findings"] if one["level"] == "wrong")
    assert (wrong["name"], "is missing; version 4 needs it" in wrong["detail"]) == ("objects", True)
    cli("restore", "--version", 2, "--out", tmp_path / "out", *store.at, code=3)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("pattern", ["versions/2/manifest", "layouts/*", "channels/latest/head", "shards/*-2-1/*"])
def test_an_object_that_is_no_file_is_found_by_verify(cli, shared, tmp_path, pattern):
    store = copied(shared, tmp_path)
    for path in objects(store, pattern):
        path.unlink()
        os.mkfifo(path)
    found = cli("verify", *store.at, "--json", code=1).json
    assert not found["ok"]


def test_a_missing_layout_is_found_by_verify(cli, shared, tmp_path):
    store = copied(shared, tmp_path)
    objects(store, "layouts/*")[0].unlink()
    assert not cli("verify", *store.at, "--json", code=1).json["ok"]


def test_a_kernel_that_is_none_is_not_taken_for_damage(cli, shared):
    for verb in (("verify",), ("subscribe", "--once")):
        assert cli(*verb, *shared.at, "--json", code=2, env={"WEIGHTSYNC_KERNEL": "bogus"}).json["error"]["kind"] == "invalid"


def test_restore_never_overwrites(cli, shared, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    assert cli("restore", "--version", 1, "--out", tmp_path / "out", *shared.at, "--json", code=2).json["error"]["kind"] == "invalid"
    assert contents(tmp_path / "out") == {"mine": b"mine"}


def test_a_bad_checkpoint_changes_nothing(cli, shared, tmp_path):
    whole = save(tmp_path / "step-50", weights(9, 400))
    (whole / "model-00002-of-00002.safetensors").unlink()
    error = cli("publish", whole, *shared.at, "--json", code=2).json["error"]
    assert "model-00002-of-00002.safetensors" in error["message"]
    cut = save_file(tmp_path / "cut.safetensors", weights(9, 400))
    cut.write_bytes(cut.read_bytes()[:-1])
    assert cli("publish", cut, *shared.at, "--json", code=1).json["error"]["kind"] == "corrupt"
    assert cli("versions", *shared.at, "--json").json["channels"]["latest"] == 4


def test_an_unreachable_store(cli):
    at = ("--store", "s3://bucket/models?endpoint=http://127.0.0.1:9&region=x", "--run", RUN)
    assert cli("versions", *at, "--json", code=3).json["error"]["kind"] == "unavailable"


def test_a_store_without_credentials(cli):
    none = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SESSION_TOKEN": "", "AWS_EC2_METADATA_DISABLED": "true"}
    at = ("--store", "s3://bucket/models?endpoint=http://127.0.0.1:9&region=x", "--run", RUN)
    assert cli("versions", *at, "--json", code=3, env=none).json["error"]["kind"] == "denied"


def test_a_store_that_we_may_not_read(cli, shared, tmp_path):
    store = copied(shared, tmp_path)
    (store.path / RUN / "run.json").chmod(0)
    if os.access(store.path / RUN / "run.json", os.R_OK):
        pytest.skip("this user may read everything")
    assert cli("versions", *store.at, "--json", code=3).json["error"]["kind"] == "denied"


def test_a_bug_says_so_and_shows_where_on_request(cli, shared, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import weightsync.cli.look as l\ndef f(c): raise KeyError('" + CANARY + "')\nl.channels = f\n"
    )
    env = {"PYTHONPATH": os.pathsep.join((str(tmp_path), cli.env["PYTHONPATH"]))}

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        command = cli.command("versions", *shared.at, "--json", *more)
        return subprocess.run(command, capture_output=True, text=True, env=cli.env | env, cwd=cli.home, check=False)

    quiet, loud = run(), run("--debug")
    assert (quiet.returncode, loud.returncode) == (1, 1)
    assert json.loads(quiet.stdout)["error"]["kind"] == "bug"
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr
    assert len(loud.stdout.splitlines()) == 1


def test_a_reader_that_goes_away_is_no_error(cli, shared):
    command = " ".join(cli.command("versions", *shared.at))
    done = subprocess.run(f"{command} | true", shell=True, capture_output=True, text=True, env=cli.env, cwd=cli.home, check=False)
    assert done.stderr == ""
