"""The small policy: its decoder, that it learns, and what it publishes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from weightsync.rl.decoder import Decoder, Shape, sample  # noqa: E402
from weightsync.rl.tiny import Settings, Trainer  # noqa: E402

SMALL = Shape(width=64, layers=2, heads=2, kv_heads=1, head_width=32, mlp_width=128)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_sampling_with_a_cache_agrees_with_the_whole_sequence() -> None:
    decoder = Decoder(SMALL, torch.Generator().manual_seed(1))
    for parameter in decoder.parameters():
        parameter.data.mul_(8)  # so that the likeliest token stands out
    prompts = torch.arange(20).view(4, 5)
    answers = sample(decoder, prompts, 6, None)
    whole = decoder(torch.cat([prompts, answers], 1)).argmax(-1)
    assert (whole[:, 4:-1] == answers).all()


def test_names_and_shapes_are_those_of_qwen3() -> None:
    decoder = Decoder(SMALL, torch.Generator())
    names = set(decoder.state_dict())
    assert {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight", "model.layers.1.self_attn.q_norm.weight"} <= names
    assert len(names) == 3 + 11 * SMALL.layers
    assert decoder.state_dict()["model.layers.0.self_attn.k_proj.weight"].shape == (32, 64)


def test_it_learns_from_rewards_alone() -> None:
    trainer = Trainer(Settings(shape=SMALL, learning_rate=1e-3, prompts=16, digits=3))
    trainer.warm_up(20, settle=0)
    rewards = [trainer.step().reward for _ in range(60)]
    assert sum(rewards[-10:]) / 10 > sum(rewards[:10]) / 10 + 0.15


def test_a_step_at_a_small_rate_changes_little_and_by_single_ulps() -> None:
    trainer = Trainer(Settings(shape=SMALL, learning_rate=1e-6))
    trainer.warm_up(2, settle=4)
    before = {name: tensor.clone() for name, tensor in trainer.weights().items()}
    result = trainer.step()
    moves = torch.cat([(tensor.view(torch.int16) - before[name].view(torch.int16)).flatten() for name, tensor in trainer.weights().items()])
    moved = moves[moves != 0].abs()
    assert result.step == 1
    assert 0.001 < moved.numel() / trainer.parameters < 0.08
    assert (moved == 1).float().mean() > 0.8


def test_equal_seeds_give_equal_checkpoints(tmp_path: Path) -> None:
    for name in ("one", "two"):
        trainer = Trainer(Settings(shape=SMALL, seed=5))
        trainer.step()
        trainer.save(tmp_path / name)
    assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "two/model.safetensors").read_bytes()


def test_a_saved_checkpoint_is_complete(tmp_path: Path) -> None:
    trainer = Trainer(Settings(shape=SMALL))
    trainer.save(tmp_path / "step1")
    assert [path.name for path in tmp_path.iterdir()] == ["step1"]
    loaded = load_file(tmp_path / "step1/model.safetensors")
    assert all((loaded[name] == tensor).all() and tensor.dtype == torch.bfloat16 for name, tensor in trainer.weights().items())
    assert json.loads((tmp_path / "step1/config.json").read_text())["num_key_value_heads"] == 1
