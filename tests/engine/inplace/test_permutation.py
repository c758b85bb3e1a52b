"""Repackings that only move lanes are learned, and others are not."""

import numpy as np
import pytest
import torch

from tests.engine.inplace.loaders import experts
from weightsync.engine.inplace import LiveWeights, learn_permutation, record
from weightsync.engine.inplace.check import _bits

BF16 = torch.bfloat16


def tiles(tensor):
    """Blocks of 4 rows, pairs of columns side by side: what kernels like."""
    count, rows, columns = tensor.shape
    return tensor.view(count, rows // 4, 4, columns // 2, 2).permute(0, 1, 3, 2, 4).contiguous().view(tensor.shape)


def shuffled(tensor):
    order = torch.randperm(tensor.numel(), generator=torch.Generator().manual_seed(3))
    return tensor.reshape(-1)[order].reshape(tensor.shape)


@pytest.mark.parametrize("dtype", [BF16, torch.float32, torch.uint8, torch.float64, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(
    "repack", [tiles, lambda tensor: tensor.transpose(1, 2).contiguous(), lambda tensor: tensor], ids=["tiles", "turned", "same"]
)
def test_strided_ones_need_no_table(repack, dtype: torch.dtype) -> None:
    found = learn_permutation((4, 24, 16), dtype, repack)
    assert found is not None
    assert found.table is None
    width = torch.empty((), dtype=dtype).element_size()
    before = torch.randint(0, 255, (4, 24, 16 * width), dtype=torch.uint8).view(dtype)
    after = repack(before.clone())
    places = found.places(np.arange(before.numel()))
    assert np.array_equal(_bits(before), _bits(after)[places])


def test_any_other_has_one() -> None:
    found = learn_permutation((4, 24, 16), BF16, shuffled)
    assert found is not None
    assert found.table is not None


def test_more_lanes_than_patterns_of_one_pass() -> None:
    found = learn_permutation((3, 256, 256), BF16, tiles)
    assert found is not None
    assert found.table is None


@pytest.mark.parametrize(
    "repack",
    [lambda one: one + 1, torch.zeros_like, lambda one: one[:1], lambda one: one.float(), lambda one: (one, one)],
    ids=["computes", "forgets", "drops", "widens", "packs"],
)
def test_what_does_not_permute_is_opaque(repack) -> None:
    assert learn_permutation((4, 24, 16), BF16, repack) is None


@pytest.mark.parametrize("repack", [tiles, shuffled], ids=["strided", "table"])
def test_writes_and_sums_go_through_it(repack) -> None:
    """As with experts that are prepacked after loading."""
    model = experts()
    found = record(model.parameters, model.load, model.tensors)
    home = model.parameters["w13"]
    learned = learn_permutation(tuple(home.shape), home.dtype, repack)
    assert learned is not None
    later = {**model.parameters, "w13": repack(home.data.clone())}
    live = LiveWeights(later, found.repacked({"w13": learned}))
    plain = LiveWeights(model.parameters, found)
    assert live.sums() == plain.sums()
    assert len(LiveWeights(later, found).wrong(plain.sums())) == 8  # without it, the proof says which tensors are elsewhere
    positions = np.array([0, 3, 77, 191])
    for name in ("experts.2.gate", "experts.3.up"):
        values = _bits(model.checkpoint[name])[positions] ^ np.uint16(1)
        assert live.poke(name, positions, values) == plain.poke(name, positions, values) == 4
    assert torch.equal(later["w13"], repack(home.data.clone()))
    assert live.sums() == plain.sums()
