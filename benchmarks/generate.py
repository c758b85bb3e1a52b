"""Makes pairs of bf16 checkpoints that differ as one step of reinforcement learning makes them differ, at any size.

The step is simulated, not drawn from a table. A bf16 weight is the rounding of an fp32 master that lies anywhere in the weight's
rounding interval; AdamW moves the master by lr * u with u ~ N(0, UPDATE_STD); the new weight is the rounding of the result. That
alone yields what real GRPO steps show: P(changed | exponent e) = 0.228 lr / ulp(e) until it saturates, 85 to 90 % of the changes
one ULP, signs even, and the tail of large differences near zero. Each tensor has its own random streams for weights and for steps:
correlated ones make pairs that repeat and fool zstd.

    python -m benchmarks.generate OUT --size 256MB --lr 1e-6 --steps 2
"""

from collections.abc import Iterator
from functools import cache
from math import erf, exp, pi, sqrt
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.pairs import Lanes, Pair, TensorPair, write_tensors
from benchmarks.units import parse_size
from weightsync.format.dtypes import dtype_named

BF16 = dtype_named("BF16")
UPDATE_STD = 0.2855  # of an AdamW step in units of the learning rate; E|u| = 0.228
WEIGHT_STD = 0.0202  # of the matrices of the real checkpoints this was calibrated with
WEIGHT_STD_SPREAD = 0.05  # log-normal, from tensor to tensor
BLOCK_LANES = 1 << 20  # bounds the memory of temporaries
REACH = 6.0  # standard deviations of an update that count as possible
ULP_EXPONENT = 134  # ulp(x) = 2^(biased exponent of x - 134)

Shape = tuple[int, ...]


def shapes(nbytes: int) -> dict[str, Shape]:
    """Names and shapes of a Qwen3-shaped decoder of about `nbytes` bytes in bf16 (at least one layer)."""
    widths = [width for width in (256, 512, 1024, 2048, 4096) if nbytes >= 2 * (32 * width + 12 * 4 * width) * width]
    width = widths[-1] if widths else 64
    layer = {**_attention(width), **_mlp(width)}
    layer_bytes = 2 * sum(int(np.prod(shape)) for shape in layer.values())
    vocabulary = 16 * width
    layers = max(1, round((nbytes - 4 * vocabulary * width) / layer_bytes))
    table = {f"model.layers.{index}.{name}": shape for index in range(layers) for name, shape in layer.items()}
    ends = {"lm_head.weight": (vocabulary, width), "model.embed_tokens.weight": (vocabulary, width), "model.norm.weight": (width,)}
    return dict(sorted({**table, **ends}.items()))


def _attention(width: int) -> dict[str, Shape]:
    return {
        "input_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (width, width),
        "self_attn.k_proj.weight": (width // 2, width),
        "self_attn.v_proj.weight": (width // 2, width),
        "self_attn.o_proj.weight": (width, width),
        "self_attn.q_norm.weight": (64,),
        "self_attn.k_norm.weight": (64,),
    }


def _mlp(width: int) -> dict[str, Shape]:
    return {
        "post_attention_layernorm.weight": (width,),
        "mlp.gate_proj.weight": (11 * width // 4, width),
        "mlp.up_proj.weight": (11 * width // 4, width),
        "mlp.down_proj.weight": (width, 11 * width // 4),
    }


def _stream(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(key)))


def to_bf16(values: NDArray[np.float32]) -> Lanes:
    """float32 -> bf16 bits, rounded to nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_float32(lanes: Lanes) -> NDArray[np.float32]:
    """bf16 bits -> float32."""
    return (lanes.astype(np.uint32) << 16).view(np.float32)


def weights(shape: Shape, stream: np.random.Generator) -> Lanes:
    """bf16 bits of one initialised tensor: normal for matrices, near one for norms (1-D)."""
    lanes = np.empty(int(np.prod(shape)), np.uint16)
    std = WEIGHT_STD * exp(WEIGHT_STD_SPREAD * stream.standard_normal())
    mean, std = (1.0, 0.003) if len(shape) == 1 else (0.0, std)
    for start in range(0, lanes.size, BLOCK_LANES):
        block = stream.standard_normal(min(BLOCK_LANES, lanes.size - start), np.float32)
        lanes[start : start + BLOCK_LANES] = to_bf16(block * np.float32(std) + np.float32(mean))
    return lanes


@cache
def _reach(learning_rate: float) -> NDArray[np.float32]:
    """By biased exponent: how far an update may carry a master, in ULPs of the weight."""
    ulps = np.exp2(np.arange(256, dtype=np.float64) - ULP_EXPONENT)
    return np.minimum(REACH * UPDATE_STD * learning_rate / ulps, 1.0).astype(np.float32)


def _step_block(old: Lanes, learning_rate: float, stream: np.random.Generator) -> Lanes:
    exponents = (old >> 7) & 0xFF
    place = stream.random(old.size, np.float32)  # of the master in its rounding interval, 0 to 1
    edge = np.minimum(place, 1 - place)
    near = np.flatnonzero(edge < _reach(learning_rate)[exponents])
    weight = to_float32(old[near])
    offset = (place[near] - np.float32(0.5)) * np.exp2(exponents[near].astype(np.float32) - ULP_EXPONENT)
    offset[(old[near] & 0x7F == 0) & (offset < 0)] /= 2  # below a power of two the interval is half as wide
    master = weight + np.copysign(1, weight) * offset
    update = stream.standard_normal(near.size, np.float32) * np.float32(UPDATE_STD * learning_rate)
    new = old.copy()
    new[near] = to_bf16(master + update)
    return new


def step(old: Lanes, learning_rate: float, stream: np.random.Generator) -> Lanes:
    """bf16 bits after one optimiser step from `old`; masters are drawn afresh."""
    new = np.empty_like(old)
    for start in range(0, old.size, BLOCK_LANES):
        new[start : start + BLOCK_LANES] = _step_block(old[start : start + BLOCK_LANES], learning_rate, stream)
    return new


def replace(old: Lanes, shape: Shape, stream: np.random.Generator) -> Lanes:
    """Other weights of the same distribution, every one of them different: density 100 %."""
    new = weights(shape, stream)
    new ^= (new == old).astype(np.uint16)
    return new


def expected_density(learning_rate: float) -> float:
    """Share of N(0, WEIGHT_STD) weights that a step changes: E min(1, |N(0, s)|), s = UPDATE_STD lr / ulp, over exponents."""
    total = 0.0
    for exponent in range(64, 128):
        low, high = (2.0 ** (exponent - 127 + up) / WEIGHT_STD / sqrt(2) for up in (0, 1))
        s = UPDATE_STD * learning_rate / 2.0 ** (exponent - ULP_EXPONENT)
        moved = s * sqrt(2 / pi) * (1 - exp(-0.5 / s**2)) + 1 - erf(1 / (s * sqrt(2)))
        total += (erf(high) - erf(low)) * moved
    return total


def rate_for(density: float) -> float:
    """The learning rate whose steps change `density` (0 to 0.9) of the weights."""
    low, high = 1e-12, 1.0
    for _ in range(60):
        middle = sqrt(low * high)
        low, high = (middle, high) if expected_density(middle) < density else (low, middle)
    return low


def tensor_pairs(table: dict[str, Shape], learning_rate: float, seed: int = 0) -> Iterator[TensorPair]:
    """One tensor after the other, so that a pair of any size can be written with the memory of its largest tensor."""
    for index, (name, shape) in enumerate(table.items()):
        old = weights(shape, _stream(seed, index, 0))
        yield TensorPair(name, BF16, shape, old, step(old, learning_rate, _stream(seed, index, 1)))


def make_pair(nbytes: int, learning_rate: float, seed: int = 0) -> Pair:
    """A pair of about `nbytes` bytes per checkpoint."""
    return Pair(f"generated, lr {learning_rate:g}", tuple(tensor_pairs(shapes(nbytes), learning_rate, seed)))


def at_density(nbytes: int, density: float, seed: int = 0) -> Pair:
    """A pair in which about `density` (0 to 1) of the matrices' weights differ; at 0 nothing does, at 1 everything."""
    if density in (0.0, 1.0):
        tensors = []
        for index, (name, shape) in enumerate(shapes(nbytes).items()):
            old = weights(shape, _stream(seed, index, 0))
            new = replace(old, shape, _stream(seed, index, 1)) if density else old.copy()
            tensors.append(TensorPair(name, BF16, shape, old, new))
        return Pair(f"density {density:.2%}", tuple(tensors))
    pair = make_pair(nbytes, rate_for(density), seed)
    return Pair(f"density {density:.2%}", pair.tensors)


def main(
    out: Path,
    size: Annotated[str, typer.Option(help="bytes of one checkpoint, e.g. 256MB")] = "128MB",
    lr: Annotated[float, typer.Option(help="learning rate")] = 1e-6,
    steps: Annotated[int, typer.Option(help="successive checkpoints after the first")] = 1,
    seed: int = 0,
) -> None:
    """Write successive checkpoints OUT/step000, OUT/step001, ... as safetensors directories."""
    table = shapes(parse_size(size))
    state = {name: weights(shape, _stream(seed, index, 0)) for index, (name, shape) in enumerate(table.items())}
    for number in range(steps + 1):
        if number:
            state = {name: step(old, lr, _stream(seed, index, number)) for index, (name, old) in enumerate(state.items())}
        directory = out / f"step{number:03d}"
        directory.mkdir(parents=True, exist_ok=True)
        write_tensors(directory / "model.safetensors", {name: (BF16, table[name], lanes) for name, lanes in state.items()})


if __name__ == "__main__":
    typer.run(main)
