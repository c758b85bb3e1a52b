"""The real command line as subprocesses, and small checkpoints."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import Tensor
from weightsync.format.safetensors import make_header

ROOT = Path(__file__).parents[2]
CANARY = "c4n4ry-s3cr3t-d0-n0t-sh0w"
RUN = "tuning"


@dataclass(frozen=True)
class Result:
    """What a command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on standard output."""
        lines = self.out.splitlines()
        assert len(lines) == 1, f"not one line: {self.out!r}"
        return json.loads(lines[0])


@dataclass(frozen=True)
class Cli:
    """`weightsync` in a home directory of its own."""

    home: Path

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WEIGHTSYNC_", "AWS_", "XDG_"))}
        kept |= {
            "HOME": str(self.home),
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "error",
            "NO_COLOR": "1",
            "WEIGHTSYNC_IMAGES": str(self.home / "images"),
        }
        return kept | {"AWS_SECRET_ACCESS_KEY": CANARY, "AWS_ACCESS_KEY_ID": "AKIAABCDEFGHIJKLMNOP", "AWS_SESSION_TOKEN": CANARY}

    def command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", "weightsync", *map(str, arguments)]

    def __call__(self, *arguments: object, code: int | None = 0, env: dict[str, str] | None = None) -> Result:
        done = subprocess.run(
            self.command(*arguments),
            check=False,
            capture_output=True,
            text=True,
            env=self.env | (env or {}),
            cwd=self.home,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        result = Result(done.returncode, done.stdout, done.stderr)
        assert code is None or result.code == code, f"{arguments}: exit {result.code}\n{result.out}\n{result.err}"
        assert CANARY not in result.out + result.err
        assert "Traceback" not in result.out + result.err, result.err
        return result


def weights(seed: int, size: int = 40_000) -> dict[str, np.ndarray]:
    """bf16 patterns of normal values, an int32 and an empty tensor."""
    random = np.random.default_rng(seed)
    values = (random.standard_normal(size).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return {
        "model.layers.0.weight": values[: size // 2].reshape(-1, 100),
        "model.layers.1.weight": values[size // 2 :].reshape(-1, 100),
        "position_ids": np.arange(64, dtype=np.int32),
        "empty": np.zeros((0, 4), np.uint16),
    }


def moved(old: dict[str, np.ndarray], seed: int, share: float = 0.01) -> dict[str, np.ndarray]:
    """One step later: a share of the bf16 values moved by one ULP."""
    random = np.random.default_rng(seed)
    new = {name: values.copy() for name, values in old.items()}
    for name in ("model.layers.0.weight", "model.layers.1.weight"):
        flat = new[name].reshape(-1)
        flat[random.random(flat.size) < share] += 1
    return new


def save(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    """A Hugging Face directory of two safetensors files, an index and a configuration."""
    path.mkdir(parents=True)
    names = sorted(tensors)
    weight_map = {name: f"model-0000{1 + (number >= 2)}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in sorted(set(weight_map.values())):
        save_file(path / file, {name: tensors[name] for name in names if weight_map[name] == file})
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (path / "config.json").write_text('{"model_type": "test"}')
    return path


def save_file(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    """One safetensors file; uint16 is bf16."""
    kinds = {np.dtype(np.uint16): "BF16", np.dtype(np.int32): "I32"}
    header = make_header([Tensor(name, DTYPES[kinds[t.dtype]], t.shape) for name, t in tensors.items()], {"format": "pt"})
    path.write_bytes(header.raw + b"".join(tensors[name].tobytes() for name in tensors))
    return path


def contents(path: Path) -> dict[str, bytes]:
    """All files below a directory."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@dataclass(frozen=True)
class Shared:
    """A store of four versions: a snapshot, two deltas, and one without changes. `serving` points to version 2."""

    url: str
    path: Path
    checkpoints: dict[int, Path]

    @property
    def at(self) -> tuple[str, ...]:
        return ("--store", self.url, "--run", RUN)
