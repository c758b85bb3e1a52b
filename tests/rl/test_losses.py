"""Losses by their gradients: what they let pass, weigh, and stop."""

import pytest

torch = pytest.importorskip("torch")

from weightsync.errors import Invalid  # noqa: E402
from weightsync.rl import losses  # noqa: E402


def _gradient(name: str, ratio: float, advantage: float, probability: float = 0.3, near: float = 1.0) -> float:
    """d loss / d log-probability of one token whose probability was `probability` and is now `ratio` times that."""
    old = torch.tensor([probability]).log()
    new = (old + torch.tensor([ratio]).log()).requires_grad_()
    losses.loss_named(name)(new, old, torch.tensor([advantage]), old + torch.tensor([near]).log()).sum().backward()
    assert new.grad is not None
    return float(new.grad)


@pytest.mark.parametrize("name", list(losses.LOSSES))
@pytest.mark.parametrize("advantage", [1.5, -0.7])
def test_on_fresh_tokens_all_are_the_policy_gradient(name: str, advantage: float) -> None:
    assert _gradient(name, 1.0, advantage) == pytest.approx(-advantage, rel=1e-5)


def test_no_correction_ignores_the_ratio_and_importance_sampling_does_not() -> None:
    assert _gradient("none", 0.25, 1.0) == pytest.approx(-1.0)
    assert _gradient("tis", 0.25, 1.0) == pytest.approx(-0.25)
    assert _gradient("tis", 3.0, 1.0, probability=0.1) == pytest.approx(-2.0)  # truncated


@pytest.mark.parametrize(("ratio", "kept"), [(0.4, 0.0), (0.6, 0.6), (1.9, 1.9), (2.1, 0.0)])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_icepop_keeps_a_band(ratio: float, kept: float, advantage: float) -> None:
    assert _gradient("icepop", ratio, advantage) == pytest.approx(-kept * advantage, rel=1e-5)


@pytest.mark.parametrize(("ratio", "advantage", "stopped"), [(1.3, 1, True), (1.3, -1, False), (0.7, -1, True), (0.7, 1, False)])
def test_ppo_stops_only_what_goes_on_in_its_direction(ratio: float, advantage: float, stopped: bool) -> None:
    assert _gradient("ppo", ratio, advantage) == pytest.approx(0.0 if stopped else -ratio * advantage, rel=1e-5)


def test_dppo_stops_by_probability_and_not_by_ratio() -> None:
    assert _gradient("dppo", 5.0, 1.0, probability=0.01) == pytest.approx(-5.0, rel=1e-2)  # 0.01 -> 0.05: free, where PPO stops it
    assert _gradient("ppo", 5.0, 1.0, probability=0.01) == 0
    assert abs(_gradient("dppo", 1.4, 1.0, probability=0.6)) < 1e-2  # 0.6 -> 0.84: beyond reach
    assert abs(_gradient("dppo", 0.6, -1.0, probability=0.6)) < 1e-2  # 0.6 -> 0.36
    assert _gradient("dppo", 0.6, 1.0, probability=0.6) == pytest.approx(-0.6, abs=1e-2)  # on its way back


def test_decoupled_ppo_clips_around_the_near_policy_and_weighs_from_the_old_one() -> None:
    assert _gradient("decoupled_ppo", 3.0, 1.0, near=3.0) == pytest.approx(-3.0, rel=1e-5)  # ratio to near is 1: not clipped
    assert _gradient("decoupled_ppo", 3.0, 1.0, near=2.0) == 0  # 1.5 beyond near: clipped
    assert _gradient("decoupled_ppo", 8.0, 1.0, probability=0.1, near=8.0) == pytest.approx(-5.0, rel=1e-5)  # truncated


@pytest.mark.parametrize("name", list(losses.LOSSES))
def test_a_token_that_has_become_impossible_or_certain_is_no_overflow(name: str) -> None:
    new = torch.tensor([-1e4, -1e-3], requires_grad=True)
    loss = losses.loss_named(name)(new, torch.tensor([-1e-3, -1e4]), torch.tensor([1.0, -1.0]), new.detach())
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert new.grad is not None
    assert torch.isfinite(new.grad).all()


def test_an_unknown_loss_is_told_which_there_are() -> None:
    with pytest.raises(Invalid, match="dppo, ppo, tis"):
        losses.loss_named("grpo2")
