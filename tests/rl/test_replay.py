"""Records of steps: complete, read back as they were, done again number by number; and what does not fit is said."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors import safe_open  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402

from tests.rl.made import MIXTURE, SHAPE, drawn, graded, group, one_thread, segment, sharpened  # noqa: E402
from weightsync.errors import Corrupt, NotFound, Unsupported  # noqa: E402
from weightsync.rl import checkpoint as checkpoints  # noqa: E402
from weightsync.rl.decoder import Shape  # noqa: E402
from weightsync.rl.learner import Learner, LearnerSettings  # noqa: E402
from weightsync.rl.records import Group, Outcome  # noqa: E402
from weightsync.rl.replay import dump, keep, load, replay  # noqa: E402

_one_thread = pytest.fixture(autouse=True)(one_thread)


def _made(place: Path, shape: Shape = SHAPE, **settings: object) -> tuple[Path, LearnerSettings]:
    """Two steps with their checkpoints; the record of the second."""
    chosen = replace(LearnerSettings(shape=shape, learning_rate=2e-3), **settings)
    learner = Learner(chosen)
    sharpened(learner._masters, 4)
    learner._round()
    for step in (1, 2):
        groups = drawn(learner.decoder, step, range(step * 9, step * 9 + 4))
        odd = group(step * 9 + 5, [1, 1])
        failed = Group(group(step * 9 + 6, [1]).task, (graded(0, segment(), outcome=Outcome.INFRA_ERROR), graded(0, sample=1)), "w2", "far")
        done = learner.consume([*groups, *([odd, failed] if not shape.experts else [])], version=step)
        learner.save(place / "checkpoints")
    return keep(place / "records", done, chosen), chosen


@pytest.mark.parametrize("shape", [SHAPE, MIXTURE])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_step_is_done_again_number_by_number(tmp_path: Path, shape: Shape, minibatches: int) -> None:
    path, settings = _made(tmp_path, shape, minibatches=minibatches)
    before, after = map(checkpoints.read, checkpoints.places(tmp_path / "checkpoints"))
    checks = replay(path, before, after)
    assert len(checks) == 5
    assert [one.holds for one in checks] == [True, True, None if minibatches > 1 else True, True, True]
    step, held = load(path)
    assert held == settings
    assert dump(step, held) == path.read_bytes()
    assert {one.grade.outcome for one in step.groups[-1].episodes} <= set(Outcome)


def test_what_was_tampered_with_is_found(tmp_path: Path) -> None:
    path, settings = _made(tmp_path)
    before = checkpoints.read(checkpoints.places(tmp_path / "checkpoints")[0])
    step, _ = load(path)
    first = step.groups[0]
    grade = replace(first.episodes[0].grade, reward=first.episodes[0].grade.reward + 1)
    better = replace(first, episodes=(replace(first.episodes[0], grade=grade), *first.episodes[1:]))
    keep(tmp_path / "records", replace(step, groups=(better, *step.groups[1:])), settings)
    assert [one.holds for one in replay(path, before)][1:] == [False, True, False]
    keep(tmp_path / "records", replace(step, metrics={**step.metrics, "loss": 9.0}), settings)
    assert [one.holds for one in replay(path, before)] == [True, True, False, False]


def test_a_checkpoint_of_another_step_is_refused(tmp_path: Path) -> None:
    path, _ = _made(tmp_path)
    after = checkpoints.read(checkpoints.places(tmp_path / "checkpoints")[1])
    assert replay(path, after)[-1].holds is False
    assert replay(path)[-1].holds is None


@pytest.mark.parametrize("damage", ["lengths", "tokens", "places", "experts", "record", "format", "bytes"])
def test_a_damaged_record_is_refused(tmp_path: Path, damage: str) -> None:
    path, _ = _made(tmp_path)
    arrays = load_file(path)
    with safe_open(path, "numpy") as file:
        record = json.loads(file.metadata()["record"])
    save_file(arrays, path, {"record": json.dumps(record)})
    load(path)  # so far it is whole
    if damage == "record":
        del record["groups"][0]["task"]["seed"]
    elif damage == "format":
        record["format"] = 99
    elif damage != "bytes":
        arrays[damage] = arrays[damage][1:] if len(arrays[damage]) else arrays["tokens"].reshape(-1, 1, 1)
    save_file(arrays, path, {"record": json.dumps(record)})
    if damage == "bytes":
        path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Unsupported if damage == "format" else Corrupt):
        load(path)
    with pytest.raises(NotFound):
        load(tmp_path / "none.safetensors")
