"""What the benchmarks compare: generated pairs, limits, and the peers' encodings."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks import generate, limits, peers
from benchmarks.pairs import Chunk, ChunkPair, Lanes, Pair, TensorPair, lane_type, load_pair, successive, write_tensors
from weightsync.errors import Invalid
from weightsync.format.dtypes import dtype_named

BYTES = 8_000_000
CALIBRATION = [(1e-6, 0.0114, 0.90, 208), (3e-6, 0.0287, 0.88, 92), (1e-5, 0.076, 0.85, 40)]


def differences(pair: Pair) -> Lanes:
    changed = [(t.old != t.new, limits.keys(t.dtype, t.new) - limits.keys(t.dtype, t.old)) for t in pair.tensors]
    return np.concatenate([difference[mask] for mask, difference in changed]).view(np.int16)


@pytest.mark.parametrize(("rate", "density", "single", "ratio"), CALIBRATION)
def test_generated_steps_look_like_real_ones(rate: float, density: float, single: float, ratio: float) -> None:
    pair = generate.make_pair(BYTES, rate, seed=3)
    limit = limits.limit(pair)
    moved = differences(pair)
    assert limit.density == pytest.approx(density, rel=0.06)
    assert np.mean(np.abs(moved) == 1) == pytest.approx(single, abs=0.01)
    assert np.mean(moved > 0) == pytest.approx(0.5, abs=0.01)
    assert pair.nbytes / limit.nbytes == pytest.approx(ratio, rel=0.05)


def test_zstd_finds_nothing_that_the_limit_does_not_know() -> None:
    pair = generate.make_pair(BYTES, 1e-6)
    codec = peers.Xor()
    assert pair.nbytes / sum(len(codec.encode(chunk)) for chunk in pair.chunks()) == pytest.approx(65, rel=0.06)


@pytest.mark.parametrize("density", [0.0, 0.001, 0.2, 0.5, 1.0])
def test_a_density_can_be_asked_for(density: float) -> None:
    pair = generate.at_density(2_000_000, density)
    assert limits.limit(pair).density == pytest.approx(density, rel=0.1)


def test_sizes_and_seeds() -> None:
    assert generate.make_pair(BYTES, 1e-6).nbytes == pytest.approx(BYTES, rel=0.1)
    one, again, other = (generate.make_pair(300_000, 1e-6, seed) for seed in (1, 1, 2))
    assert all((a.new == b.new).all() for a, b in zip(one.tensors, again.tensors, strict=True))
    assert not any((a.old == b.old).all() for a, b in zip(one.tensors, other.tensors, strict=True))


def test_the_limit_of_a_pair_worked_out_by_hand() -> None:
    old = np.full(64, 0x3F80, np.uint16)  # one exponent only
    new = old.copy()
    new[:16:2] += 1
    new[32:40] -= 1
    limit = limits.limit(Pair("hand", (TensorPair("w", dtype_named("BF16"), (64,), old, new),)))
    assert (limit.changed, limit.elements) == (16, 64)
    assert 8 * limit.nbytes == pytest.approx(64 * 0.8112781 + 16)  # H(1/4) for each lane, one bit for each sign


def test_keys_keep_the_order_of_values() -> None:
    values = np.array([-np.inf, -2.5, -1e-40, -0.0, 0.0, 1e-40, 2.5, np.inf], np.float32)
    keys = limits.keys(dtype_named("BF16"), generate.to_bf16(values)).astype(np.uint16).view(np.int16)
    assert (np.diff(keys.astype(int)) > 0).all()


CODECS: list[Callable[[], peers.ChunkCodec]] = [peers.IndexValues, peers.GapsValues, peers.Xor, peers.XorPlanes]


@pytest.mark.parametrize("make", CODECS)
@pytest.mark.parametrize("name", ["BF16", "F32", "F8_E4M3", "I64"])
@pytest.mark.parametrize("density", [0.0, 0.0005, 0.3, 1.0])
def test_peers_are_lossless(make: Callable[[], peers.ChunkCodec], name: str, density: float) -> None:
    random = np.random.default_rng(5)
    dtype, codec = dtype_named(name), make()
    for size in (1, 255, 70_001):  # scratch memory is reused between chunks
        old, noise = (random.integers(0, 256, size * dtype.lane_bytes, np.uint8).view(lane_type(dtype)) for _ in range(2))
        new = np.where(random.random(size) < density, noise, old)
        target = old.copy()
        codec.apply(codec.encode(ChunkPair(dtype, 0, old, new)), Chunk(dtype, 0, target))
        assert (target == new).all()


def test_a_chunk_without_changes_costs_nothing() -> None:
    lanes = np.arange(1000, dtype=np.uint16)
    assert all(codec.encode(ChunkPair(dtype_named("BF16"), 0, lanes, lanes.copy())) == b"" for codec in peers.peers())


def test_pairs_from_files(tmp_path: Path) -> None:
    generate.main(tmp_path, size="200KB", steps=2, lr=1e-4)
    first, second = list(successive(tmp_path))
    assert all((a.new == b.old).all() for a, b in zip(first.tensors, second.tensors, strict=True))
    assert 0 < first.changed < first.nbytes
    write_tensors(tmp_path / "other.safetensors", {"x": (dtype_named("F32"), (2,), np.zeros(2, np.uint32))})
    with pytest.raises(Invalid, match="'x'"):
        load_pair(tmp_path / "step000", tmp_path / "other.safetensors")
