"""`rl eval` and `rl replay` from the command line, over real files."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402

from tests.rl.made import drawn, graded, one_thread, segment  # noqa: E402
from weightsync.cli.app import run  # noqa: E402
from weightsync.errors import Unsupported  # noqa: E402
from weightsync.rl.decoder import Shape  # noqa: E402
from weightsync.rl.environments import open_environment  # noqa: E402
from weightsync.rl.evaluate import summed  # noqa: E402
from weightsync.rl.imitation import examples  # noqa: E402
from weightsync.rl.learner import Learner, LearnerSettings  # noqa: E402
from weightsync.rl.records import Outcome  # noqa: E402
from weightsync.rl.replay import keep  # noqa: E402
from weightsync.rl.text import END, decode  # noqa: E402

_one_thread = pytest.fixture(autouse=True)(one_thread)
SMALL = Shape(vocabulary=128, width=64, layers=2, heads=2, kv_heads=2, head_width=32, mlp_width=128, context=24)


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    code = run([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_checkpoint_is_worth_more_after_imitation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learner = Learner(LearnerSettings(shape=SMALL))
    learner.save(tmp_path / "trainer")
    directory = tmp_path / "hf"
    directory.mkdir()
    learner.imitate(examples(open_environment("sort:2"), 64 * 40, spoiled=0.0))
    save_file(learner.weights(), directory / "model.safetensors", metadata={"format": "pt"})
    for name, content in learner.files().items():
        (directory / name).write_bytes(content)
    flags = ("--environment", "sort:2", "--problems", "100")
    code, before = _json(capsys, "rl", "eval", str(tmp_path / "trainer" / "step-00000000"), *flags)
    assert (code, before["outcomes"]) == (0, {"graded": 100})
    code, after = _json(capsys, "rl", "eval", str(directory), *flags, "--at-least", "0.5")
    assert code == 0
    assert after["reward"] > before["reward"] + 0.4
    assert after["scores"]["places"] >= after["reward"]
    assert run(["rl", "eval", str(directory), *flags, "--at-least", "1.01"]) == 1


def test_a_step_is_replayed_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learner = Learner(LearnerSettings(shape=SMALL))
    for step in (1, 2):
        done = learner.consume(drawn(learner.decoder, step, range(step * 4, step * 4 + 4)), version=step)
        learner.save(tmp_path / "checkpoints")
    record = keep(tmp_path / "records", done, learner.settings)
    code, found = _json(capsys, "rl", "replay", str(record), "--checkpoints", str(tmp_path / "checkpoints"), "--dump")
    assert code == 0
    assert [one["holds"] for one in found["checks"]] == [True] * 5
    assert len(found["groups"]) == 4
    assert set(found["groups"][0]["episodes"][0]["segments"][0]) == {"tokens", "made", "logprobs", "versions", "advantages"}
    assert run(["rl", "replay", str(record), "--dump"]) == 0
    assert "give the checkpoint of the step before" in capsys.readouterr().out
    assert run(["rl", "replay", str(record), "--checkpoints", str(tmp_path)]) == 2
    other = Learner(LearnerSettings(shape=SMALL, seed=9))
    (tmp_path / "other").mkdir()
    for step in (1, 2):
        other.consume(drawn(other.decoder, step, range(step * 4, step * 4 + 4)), version=step)
        other.save(tmp_path / "other")
    assert run(["rl", "replay", str(record), "--checkpoints", str(tmp_path / "other")]) == 1


@pytest.mark.parametrize("made", [lambda place: place, lambda place: place / "none"])
def test_what_is_no_checkpoint_is_told_so(made: Callable[[Path], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rl", "eval", str(made(tmp_path))]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err


def test_what_was_not_graded_is_no_zero() -> None:
    episodes = [graded(1.0, segment()), graded(0.0, segment(), outcome=Outcome.INFRA_ERROR), graded(1.0, segment())]
    assert summed(episodes).reward == 1.0
    assert summed(episodes).outcomes == {"graded": 2, "infra_error": 1}


def test_a_config_gives_its_shape_back_and_other_models_are_refused() -> None:
    for shape in (SMALL, Shape(experts=4)):
        assert Shape.of(shape.config()) == shape
    with pytest.raises(Unsupported, match="llama"):
        Shape.of({"model_type": "llama"})


def test_half_of_the_examples_are_spoiled_in_one_digit() -> None:
    environment = open_environment("sort")
    pairs = [(decode(prompt), decode(answer), answer[-1]) for prompt, answer in examples(environment, 400, spoiled=0.5)]
    right = ["".join(sorted(prompt[:-1])) for prompt, _, _ in pairs]
    wrong = [sum(one != other for one, other in zip(answer, true, strict=True)) for (_, answer, _), true in zip(pairs, right, strict=True)]
    assert set(wrong) == {0, 1}
    assert 130 < sum(wrong) < 220  # a tenth of the spoiled ones draws the right digit again
    assert {end for *_, end in pairs} == {END}
