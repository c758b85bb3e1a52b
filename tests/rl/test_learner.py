"""The learner: it learns, counts each group once, and goes on from its checkpoint bit for bit."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.rl.made import MIXTURE, SHAPE, drawn, graded, group, one_thread, segment, sharpened  # noqa: E402
from weightsync.errors import Conflict, Corrupt, Invalid, NotFound  # noqa: E402
from weightsync.rl import checkpoint as checkpoints  # noqa: E402
from weightsync.rl.checkpoint import Numbers  # noqa: E402
from weightsync.rl.learner import Learner, LearnerSettings  # noqa: E402

SETTINGS = LearnerSettings(shape=SHAPE, learning_rate=2e-3)
_one_thread = pytest.fixture(autouse=True)(one_thread)


def _learner(settings: LearnerSettings = SETTINGS) -> Learner:
    learner = Learner(settings)
    sharpened(learner._masters, 4)
    learner._round()
    return learner


def _bits(learner: Learner) -> list[bytes]:
    return [tensor.view(torch.int16).numpy().tobytes() for tensor in learner.weights().values()]


def _steps(learner: Learner, first: int, count: int) -> Iterator[float]:
    for step in range(first, first + count):
        numbers = range(step * 8, step * 8 + 8)
        yield learner.consume(drawn(learner.decoder, step + 1, numbers, 8), version=step + 1).metrics["reward"]


def test_the_reward_grows() -> None:
    rewards = list(_steps(_learner(), 0, 16))
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.1


def test_a_group_counts_once() -> None:
    learner = _learner()
    learner.consume([group(3, [1, 0]), group(4, [0, 1])])
    before = _bits(learner)
    with pytest.raises(Conflict, match=r"\[4\]"):
        learner.consume([group(5, [1, 0]), group(4, [0, 1])])
    with pytest.raises(Conflict, match=r"\[7\]"):
        learner.consume([group(7, [1, 0]), group(7, [0, 1])])
    assert (_bits(learner), learner.step, learner.consumed.ranges) == (before, 1, ((3, 5),))


def test_groups_that_teach_nothing_are_counted_and_change_nothing() -> None:
    learner = _learner()
    before = _bits(learner)
    found = learner.consume([group(0, [1, 1]), group(1, [0, 0])])
    assert found.metrics["groups_silent"] == 2
    assert _bits(learner) == before
    assert (learner.step, learner.consumed.ranges) == (1, ((0, 2),))


def test_masters_move_where_rounding_hides_it() -> None:
    learner = _learner(replace(SETTINGS, learning_rate=1e-8))
    before = [tensor.clone() for tensor in learner.checkpoint().tensors.values()]
    published = _bits(learner)
    learner.consume(drawn(learner.decoder, 1, range(8)))
    after = list(learner.checkpoint().tensors.values())[: len(before)]
    moved = sum(int((one != other).sum()) for one, other in zip(before, after, strict=True))
    changed = sum(sum(one != other for one, other in zip(*pair, strict=True)) for pair in zip(published, _bits(learner), strict=True))
    assert changed < moved / 20
    assert all(tensor.dtype is torch.bfloat16 for tensor in learner.weights().values())


@pytest.mark.parametrize("minibatches", [1, 3])
def test_it_goes_on_from_a_checkpoint_bit_for_bit(tmp_path: Path, minibatches: int) -> None:
    settings = replace(SETTINGS, minibatches=minibatches, loss="decoupled_ppo")
    learner = _learner(settings)
    list(_steps(learner, 0, 2))
    learner.save(tmp_path, extra={"version": 3})
    list(_steps(learner, 2, 2))
    again = Learner(settings)
    held = checkpoints.newest(tmp_path)
    assert held is not None
    assert again.restore(held) == {"version": 3}
    assert (again.step, again.consumed.ranges) == (2, ((0, 16),))
    list(_steps(again, 2, 2))
    assert _bits(again) == _bits(learner)


def test_passes_of_any_size_give_the_same_update() -> None:
    groups = drawn(_learner().decoder, 1, range(6))
    moved = []
    for tokens in (40, 100_000):
        learner = _learner(replace(SETTINGS, batch_tokens=tokens))
        learner.consume(groups)
        moved.append(torch.cat([tensor.flatten() for name, tensor in learner.checkpoint().tensors.items() if name.startswith("masters")]))
    assert torch.allclose(moved[0], moved[1], atol=2e-4)  # AdamW's first step is of the size of the rate, whatever the gradient


def test_a_checkpoint_of_another_shape_is_refused() -> None:
    with pytest.raises(Invalid, match="another model"):
        Learner(replace(SETTINGS, shape=MIXTURE)).restore(_learner().checkpoint())


def test_a_damaged_or_partial_checkpoint_is_refused(tmp_path: Path) -> None:
    place = _learner().save(tmp_path)
    tensors = place / checkpoints.TENSORS
    data = bytearray(tensors.read_bytes())
    data[len(data) // 2] ^= 1
    tensors.write_bytes(data)
    with pytest.raises(Corrupt, match="not what was written"):
        checkpoints.read(place)
    (place / checkpoints.STATE).write_text("{}")
    with pytest.raises(Corrupt):
        checkpoints.read(place)
    tensors.unlink()
    with pytest.raises((Corrupt, NotFound)):
        checkpoints.read(place)


def test_what_a_killed_writer_left_is_no_checkpoint_and_goes(tmp_path: Path) -> None:
    learner = _learner()
    list(_steps(learner, 0, 1))
    learner.save(tmp_path)
    (tmp_path / ".step-00000002.0123").mkdir()
    held = checkpoints.newest(tmp_path)
    assert held is not None
    assert held.step == 1
    list(_steps(learner, 1, 1))
    learner.save(tmp_path)
    checkpoints.prune(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
    assert checkpoints.newest(tmp_path / "none") is None


def test_numbers_are_few_ranges() -> None:
    numbers = Numbers().plus([5, 3, 4, 9]).plus(range(6, 9)).plus([20])
    assert numbers.ranges == ((3, 10), (20, 21))
    assert [number for number in range(25) if number in numbers] == [*range(3, 10), 20]
    assert len(numbers) == 8


def test_replayed_routes_bring_the_learner_closer_to_the_engine() -> None:
    learner = _learner(replace(SETTINGS, shape=MIXTURE))
    sharpened(learner._masters, 2)
    learner._round()
    groups = drawn(learner.decoder, 1, range(24), 8)
    found = {}
    for replay in (True, False):
        other = Learner(replace(SETTINGS, shape=MIXTURE, replay_routes=replay, learning_rate=0.0))
        other.restore(learner.checkpoint())
        found[replay] = other.consume(groups, version=1).metrics["k3"]
    assert found[True] < found[False] / 2


@pytest.mark.parametrize("shape", [SHAPE, MIXTURE])
def test_aligned_numerics_do_not_mismatch_at_all(shape) -> None:
    settings = replace(SETTINGS, shape=shape, aligned_rows=8)
    learner = _learner(settings)
    for step in range(3):
        groups = drawn(learner.decoder, step + 1, range(step * 6, step * 6 + 6), reader=learner._reader)
        found = learner.consume(groups, version=step + 1)
        assert found.metrics["tokens_trained"] > 100
        assert found.metrics["logprob_change_max"] == 0.0
        assert found.metrics["k3"] == 0.0
    plain = _learner(replace(settings, aligned_rows=0))
    assert plain.consume(drawn(plain.decoder, 1, range(6))).metrics["logprob_change_max"] > 0


def test_a_gradient_that_is_not_finite_is_left_out_and_counted() -> None:
    learner = _learner()
    before = _bits(learner)
    groups = drawn(learner.decoder, 1, range(4))
    groups[0].episodes[0].segments[0].logprobs[-1] = np.nan
    found = learner.consume(groups)
    assert (found.metrics["updates_left_out"], found.metrics["gradient_norm"]) == (1, 0)
    assert _bits(learner) == before
    learner.consume(drawn(learner.decoder, 1, range(4, 8)))
    assert _bits(learner) != before


@pytest.mark.parametrize("wrong", ["length", "token"])
def test_a_group_that_the_model_cannot_read_is_refused_before_anything_changes(wrong: str) -> None:
    learner = _learner()
    before = _bits(learner)
    one = group(1, [1, 0])
    part = segment(SHAPE.context + 1) if wrong == "length" else segment()
    if wrong == "token":
        part.tokens[2] = 128
    bad = replace(one, episodes=(graded(1, part), *one.episodes[1:]))
    with pytest.raises(Invalid, match="group 1 has a segment"):
        learner.consume([group(0, [1, 0]), bad])
    assert (_bits(learner), learner.step, len(learner.consumed)) == (before, 0, 0)
