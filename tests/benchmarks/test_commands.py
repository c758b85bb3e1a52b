"""The benchmark commands at toy sizes: what they write, and what they refuse."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import checks, codec, generate, memory, paths
from benchmarks.contest import Contest
from benchmarks.pairs import Chunk, ChunkPair
from benchmarks.units import parse_size
from weightsync.errors import Corrupt, Invalid


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    directory = tmp_path_factory.mktemp("results")
    codec.main(size="500KB", lr=[1e-5], repeats=1, output=directory / "codec.json", plot=directory / "codec.svg")
    return json.loads((directory / "codec.json").read_text()), directory / "codec.svg"


def test_results_say_where_they_come_from(results: tuple[dict[str, Any], Path]) -> None:
    found, _ = results
    assert {"cpu", "cores", "commit", "date", "command", "kernel"} <= set(found)
    assert found["baselines"]["memcpy_gb_s"] > 0


def test_every_codec_meets_the_same_pair(results: tuple[dict[str, Any], Path]) -> None:
    pair = results[0]["pairs"][0]
    names = [entry["name"] for entry in pair["codecs"]]
    assert names == [entry.name for entry in codec.codecs()]
    sizes = {entry["name"]: entry["nbytes"] for entry in pair["codecs"]}
    assert pair["limit"]["nbytes"] < sizes["class-gap"] < sizes["XOR, zstd-1"]
    assert all(entry[key] > 0 for entry in pair["codecs"] for key in ("encode_gb_s", "decode_gb_s", "bare_encode_gb_s"))


def test_densities_run_from_none_to_all(results: tuple[dict[str, Any], Path]) -> None:
    rows = results[0]["densities"]
    assert [rows[0]["density"], rows[-1]["density"]] == [0, 1]
    assert rows[0]["delta"]["nbytes"] == 0
    assert all(row["of_raw"] <= checks.MAX_OF_RAW for row in rows)


def test_checks_name_what_does_not_hold(results: tuple[dict[str, Any], Path]) -> None:
    found = json.loads(json.dumps(results[0]))
    found["pairs"][0]["codecs"][0]["nbytes"] = 10**9
    broken = [check["what"] for check in checks.checks(found) if not check["holds"]]
    assert any("over the limit" in what for what in broken)


def test_the_plot_names_all_codecs(results: tuple[dict[str, Any], Path]) -> None:
    text = results[1].read_text()
    assert all(entry.name in text for entry in codec.codecs())
    assert "entropy limit" in text


class Forgetful(paths.ClassGap):
    """Loses the last change."""

    def apply(self, frame: bytes, target: Chunk) -> None:
        last = int(target.lanes[-1])
        super().apply(frame, target)
        target.lanes[-1] = last


def test_a_codec_that_loses_a_bit_is_refused() -> None:
    pair = generate.at_density(200_000, 1.0)
    with pytest.raises(Corrupt, match="differs from the checkpoint"):
        Contest(pair, [Forgetful()]).run(1)


def test_the_file_gives_the_chunks_of_the_pair(tmp_path: Path) -> None:
    pair = generate.make_pair(400_000, 1e-5)
    with paths.CheckpointFile(tmp_path / "new.safetensors", pair) as file:
        for index, chunk in enumerate(pair.chunks()):
            assert (file.read(index, chunk.new) == chunk.new).all()


def test_snapshots_need_no_base() -> None:
    chunk = generate.make_pair(400_000, 1e-5).chunks()[0]
    target = Chunk(chunk.dtype, 0, chunk.old.copy())
    paths.Snapshot().apply(paths.Snapshot().encode(ChunkPair(chunk.dtype, 0, chunk.old, chunk.new)), target)
    assert (target.lanes == chunk.new).all()


def test_peak_memory_is_that_of_the_child() -> None:
    large = memory.peak([sys.executable, "-c", "import time; a = bytearray(200_000_000); time.sleep(0.3)"])
    small = memory.peak([sys.executable, "-c", "import time; time.sleep(0.3)"])
    assert large["peak"] - small["peak"] == pytest.approx(200_000_000, rel=0.1)
    assert small["anonymous"] < small["peak"] < 50_000_000


def test_a_failing_command_is_an_error() -> None:
    with pytest.raises(memory.ChildFailed, match="ended with 3: no such store"):
        memory.peak([sys.executable, "-c", "print('no such store'); raise SystemExit(3)"])


@pytest.mark.parametrize(("text", "nbytes"), [("256MB", 256_000_000), ("1.5GiB", 3 << 29), ("10 kb", 10_000), ("7", 7)])
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "MB", "big", "3TBs"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(Invalid):
        parse_size(text)


def test_memory_of_both_sides_is_measured_through_the_command_line(tmp_path: Path) -> None:
    found = memory.measure(2_000_000, tmp_path)
    assert all(found[f"{side}_{form}"]["peak"] > found["nbytes"] for side in ("publish", "subscribe") for form in ("snapshot", "delta"))
