"""The demo with the user's own checkpoints: real subscriber processes, every byte compared, nothing left behind."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.tools import moved, save, save_file, weights
from weightsync.cli import demo_compare, demo_input
from weightsync.errors import Invalid


@pytest.fixture
def checkpoints(tmp_path):
    """step-2 before step-10, as people count."""
    state = weights(7, 4000)
    for number in (1, 2, 10):
        save(tmp_path / "in" / f"step-{number}", state)
        state = moved(state, number)
    (tmp_path / "in" / "step-1" / "optimizer.pt").write_bytes(b"not for readers")
    return tmp_path / "in"


def own(cli, tmp_path) -> dict[str, str]:
    """The demo's temporary directories under `tmp_path`, so that leftovers show."""
    (tmp_path / "tmp").mkdir()
    return {"TMPDIR": str(tmp_path / "tmp")}


def test_the_demo(cli, checkpoints, tmp_path):
    users = {"WEIGHTSYNC_STORE": (tmp_path / "production").as_uri(), "WEIGHTSYNC_RUN": "production"}
    result = cli("demo", "--checkpoints", checkpoints, "--json", env=own(cli, tmp_path) | users)
    assert not (tmp_path / "production").exists()
    found = result.json
    assert (found["ok"], found["bit_identical"], found["subscribers"]) == (True, True, 2)
    assert [(v["version"], v["form"], v["bit_identical"]) for v in found["versions"]] == [
        (1, "snapshot", True),
        (2, "delta", True),
        (3, "delta", True),
    ]
    assert found["delta_ratio"] > 1
    first, *table = result.err.splitlines()
    assert first == f"publishing what is in {checkpoints}; 2 subscriber processes will rebuild each version ..."
    assert [line.split()[0] for line in table[:4]] == ["version", "1", "2", "3"]
    assert "step-10" in table[3]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_demo_for_people(cli, checkpoints, tmp_path):
    store = tmp_path / "store"
    lines = cli("demo", "--checkpoints", checkpoints, "--steps", 1, "--subscribers", 1, "--store", store.as_uri()).out.splitlines()
    assert lines[0].split() == ["version", "form", "changed", "wire", "ratio", "publish", "rebuild", "input", "bit-identical"]
    assert [line.split()[-1] for line in lines[1:3]] == ["yes", "yes"]
    assert lines[-1] == "2 versions, 1 subscriber process, bit-identical: yes (every byte compared)"
    assert (store / "demo" / "run.json").is_file()


def test_an_interrupted_demo_leaves_nothing_behind(cli, checkpoints, tmp_path):
    process = subprocess.Popen(
        cli.command("demo", "--checkpoints", checkpoints, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=cli.env | own(cli, tmp_path),
    )
    assert process.stderr is not None
    process.stderr.readline()  # what it will do
    process.stderr.readline()  # the header comes with the first row, when everything runs
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert json.loads(out)["error"]["kind"] == "interrupted"
    assert "Traceback" not in err
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path / "tmp").encode() in _read(p)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_difference_of_one_bit_is_seen(checkpoints, tmp_path):
    copy = save(tmp_path / "copy", weights(7, 4000))
    assert demo_compare.identical(checkpoints / "step-1", copy)
    data = bytearray((copy / "model-00001-of-00002.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model-00001-of-00002.safetensors").write_bytes(data)
    assert not demo_compare.identical(checkpoints / "step-1", copy)


def test_a_file_too_many_is_seen(checkpoints, tmp_path):
    copy = save(tmp_path / "copy", weights(7, 4000))
    (copy / "more.json").write_text("{}")
    assert not demo_compare.identical(checkpoints / "step-1", copy)


def test_files_are_taken_where_there_are_no_directories(tmp_path):
    for number in (9, 10):
        save_file(tmp_path / f"s{number}.safetensors", weights(1, 400))
    assert [(c.step, c.path.name) for c in demo_input.given(tmp_path)] == [(1, "s9.safetensors"), (2, "s10.safetensors")]


def test_what_is_trained_is_a_checkpoint_that_changes(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from weightsync.rl import demo

    monkeypatch.setattr(demo, "WARM_UP_STEPS", 1)
    monkeypatch.setattr(demo, "SETTLE_STEPS", 0)
    found = list(demo_input.trained(tmp_path, 1, 1e-6))
    assert [checkpoint.step for checkpoint in found] == [0, 1]
    assert not demo_compare.identical(found[0].path, found[1].path)
    assert demo_compare.identical(found[1].path, found[1].path)


def test_no_checkpoints_is_an_error(tmp_path):
    with pytest.raises(Invalid, match="holds no checkpoints"):
        demo_input.given(tmp_path)


KEYS = (
    "reward_start reward_end steps versions swaps swaps_proven pause_p50_s pause_p99_s bytes_sent bytes_full lag_max_versions lag_max_s "
    "kills_survived"
)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demo_of_the_loop(cli, tmp_path):
    """Trainer, hub, two regions behind links, one worker killed, one region cut off; nothing is left behind."""
    command = cli.command("demo", "--steps", 6, "--report", tmp_path / "report.html", "--json")
    result = subprocess.run(command, check=False, capture_output=True, text=True, env=cli.env | own(cli, tmp_path), timeout=360)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["ok"]
    assert set(KEYS.split()) <= found.keys()
    assert (found["steps"], found["kills_survived"]) == (6, 1)
    assert found["swaps"] == found["swaps_proven"] > 0
    assert found["lag_max_versions"] <= 2
    assert 0 < found["bytes_sent"] < found["bytes_full"]
    assert "region asia is cut off" in result.stderr
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 1
    assert "src=" not in page
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path / "tmp").encode() in _read(p)]


def test_the_loop_brings_its_own_store(cli, tmp_path):
    assert cli("demo", "--store", (tmp_path / "store").as_uri(), "--json", code=2).json["error"]["kind"] == "invalid"
