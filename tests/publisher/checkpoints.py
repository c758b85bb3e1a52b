"""Checkpoints for tests: every dtype, odd shapes, hostile bits; written without the code under test."""

import json
import struct
from pathlib import Path

import numpy as np

from weightsync.format.dtypes import DTYPES

Weights = dict[str, tuple[str, tuple[int, ...], bytes]]  # name: (dtype, shape, bytes)

SPECIAL_BF16 = np.array([0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF, 0x0001, 0x807F, 0x3F80], "<u2")


def make(seed: int = 0, size: int = 2500) -> Weights:
    """About twenty tensors: all dtypes, NaN payloads, signed zeros, subnormals, zero elements, a scalar, experts, several chunks each."""
    rng = np.random.default_rng(seed)
    found: Weights = {}
    for name in DTYPES:
        shape = (3, 8)
        found[f"odd.{name}"] = (name, shape, rng.bytes(DTYPES[name].lanes(shape) * DTYPES[name].lane_bytes))
    found["odd.BOOL"] = ("BOOL", (3, 8), rng.integers(0, 2, 24, np.uint8).tobytes())
    for name in ("model.embed", "model.experts.0.w", "model.experts.1.w", "model.experts.10.w"):
        floats = (rng.standard_normal(size) * 0.02).astype("<f4")
        lanes = (floats.view("<u4") >> 16).astype("<u2")
        lanes[: len(SPECIAL_BF16)] = SPECIAL_BF16
        found[name] = ("BF16", (size // 50, 50), lanes.tobytes())
    found["model.router"] = ("F32", (40, 40), rng.standard_normal(1600).astype("<f4").tobytes())
    found["model.quantised"] = ("F8_E4M3", (2000,), rng.bytes(2000))
    found["model.scales"] = ("F8_E8M0", (50,), rng.bytes(50))
    found["empty"] = ("F16", (0, 7), b"")
    found["scalar"] = ("F32", (), struct.pack("<f", 0.5))
    return found


def step(weights: Weights, seed: int, share: float = 0.02, names: tuple[str, ...] = ()) -> Weights:
    """A share of the lanes (of the tensors called `names`; of all) goes up or down by one."""
    rng = np.random.default_rng(seed)
    found = dict(weights)
    for name, (kind, shape, data) in weights.items():
        if (names and name not in names) or kind == "BOOL":
            continue
        lanes = np.frombuffer(data, f"<u{DTYPES[kind].lane_bytes}").copy()
        moved = rng.random(len(lanes)) < share
        lanes[moved] += rng.choice(np.array([1, -1]), int(moved.sum())).astype(lanes.dtype)
        found[name] = (kind, shape, lanes.tobytes())
    return found


def file_bytes(weights: Weights, metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file."""
    table: dict[str, object] = {"__metadata__": metadata} if metadata is not None else {}
    end, parts = 0, []
    for name, (kind, shape, data) in weights.items():
        table[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [end, end + len(data)]}
        parts.append(data)
        end += len(data)
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


def write(directory: Path, weights: Weights, *, shards: int = 3, index: bool = True) -> Path:
    """A Hugging Face directory: shards, index, config, tokenizer, a chat template in a subdirectory."""
    directory.mkdir(parents=True, exist_ok=True)
    names = sorted(weights, key=hash_of)
    homes = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors"
        own = names[number::shards]
        (directory / file).write_bytes(file_bytes({name: weights[name] for name in own}, {"format": "pt"}))
        homes |= dict.fromkeys(own, file)
    if index and shards > 1:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": homes}))
    (directory / "config.json").write_text('{"architectures": ["Test"]}\n')
    (directory / "tokenizer.json").write_bytes(b"\x00\xff tokenizer")
    (directory / "additional_chat_templates").mkdir(exist_ok=True)
    (directory / "additional_chat_templates" / "tool.jinja").write_text("{{ x }}")
    return directory


def hash_of(name: str) -> int:
    """Spreads names over files in an order that is neither theirs nor random."""
    return sum(ord(c) * 31**i for i, c in enumerate(name)) % 9973


def tree(directory: Path) -> dict[str, bytes]:
    """All files by relative name."""
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def bits(kind: str, data: bytes) -> np.ndarray:
    """The lanes of a tensor."""
    return np.frombuffer(data, f"<u{DTYPES[kind].lane_bytes}")
