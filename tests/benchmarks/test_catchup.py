"""Catching up and going back at toy sizes: what the commands write, and that the least bytes are met."""

import json
from pathlib import Path

import pytest

from benchmarks import catchup, undo
from benchmarks.brute_force import cheapest
from benchmarks.long_run import Model


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    directory = tmp_path_factory.mktemp("catchup")
    catchup.main("300KB", versions=70, store="file", fold_spans="8", output=directory / "out.json", plot=directory / "out.svg")
    return json.loads((directory / "out.json").read_text()), directory / "out.svg"


def test_no_gap_costs_more_than_the_least(results):
    found, plot = results
    assert [entry["gap"] for entry in found["gaps"]] == [1, 2, 4, 8, 16, 32, 64, 70]
    for entry in found["gaps"]:
        assert entry["least_bytes"] <= entry["bytes"] <= 1.1 * entry["least_bytes"]
        assert entry["bytes_fetched"] < entry["bytes"]  # the leaves are not shards
        assert entry["levels_bytes"]["8"] == entry["least_bytes"] <= entry["levels_bytes"]["0"] <= entry["every_delta_bytes"]
    assert found["stored_bytes"]["fold"] > 0
    assert "replay every delta" in plot.read_text()


def test_the_first_versions_are_added_up(results):
    first = results[0]["first"]
    assert first["versions"] == 70
    assert first["bytes"] == sum(first["by_form"].values())


def test_trying_everything():
    ways = [(0, 1, 100, "snapshot"), (1, 2, 10, "delta"), (2, 3, 10, "delta"), (1, 3, 15, "fold"), (0, 3, 112, "snapshot")]
    assert [cheapest(ways, have, 3) for have in (0, 1, 2)] == [112, 15, 10]
    assert cheapest(ways, 1, 3, keep=lambda edge: edge[3] == "delta") == 20


def test_a_long_run_changes_as_training_does():
    model = Model(2_000_000, learning_rate=1e-6)
    before, shares = model.lanes.copy(), []
    for _ in range(12):
        model.step()
        shares.append(float((model.lanes != before).mean()))
    assert 0.008 < shares[0] < 0.014
    assert 0.06 < shares[-1] < 0.10


def test_going_back(tmp_path):
    found = undo.measure(tmp_path, 40_000_000, 2, 1)
    assert len(found["back_s"]) == len(found["forth_s"]) == 1
    assert 0 < found["kept_share"] < 0.1
