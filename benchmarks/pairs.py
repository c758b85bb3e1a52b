"""A pair of successive checkpoints in memory, and safetensors files without a framework."""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightsync.errors import Invalid
from weightsync.format.dtypes import DType, dtype_named

Lanes = NDArray[Any]  # 1-D unsigned little-endian integers, 1 to 8 bytes wide
CHUNK_LANES = 1 << 20


@dataclass(frozen=True)
class TensorPair:
    """One tensor before and after a step; `old` and `new` are lanes of equal length."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    old: Lanes
    new: Lanes


@dataclass(frozen=True)
class ChunkPair:
    """Successive lanes of one tensor before and after; `first_lane` is where they start in it."""

    dtype: DType
    first_lane: int
    old: Lanes
    new: Lanes


@dataclass(frozen=True)
class Chunk:
    """Successive lanes of one tensor of an image."""

    dtype: DType
    first_lane: int
    lanes: Lanes


@dataclass(frozen=True)
class Pair:
    """Two successive checkpoints of the same layout."""

    name: str
    tensors: tuple[TensorPair, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one of the two checkpoints."""
        return sum(tensor.new.nbytes for tensor in self.tensors)

    @property
    def changed(self) -> int:
        """Lanes that differ."""
        return sum(int(np.count_nonzero(tensor.old != tensor.new)) for tensor in self.tensors)

    def chunks(self, lanes: int = CHUNK_LANES) -> list[ChunkPair]:
        """The pair cut as the codec cuts it: never across tensors."""
        return [
            ChunkPair(tensor.dtype, start, tensor.old[start : start + lanes], tensor.new[start : start + lanes])
            for tensor in self.tensors
            for start in range(0, tensor.new.size, lanes)
        ]


def lane_type(dtype: DType) -> np.dtype[Any]:
    """The NumPy type of `dtype`'s lanes."""
    return np.dtype(f"<u{dtype.lane_bytes}")


def read_tensors(path: Path) -> Iterator[tuple[str, DType, tuple[int, ...], Lanes]]:
    """Tensors of one safetensors file, in the file's order, as read-only lanes mapped from it."""
    data = np.memmap(path, np.uint8, "r")
    header_bytes = int(data[:8].view("<u8")[0])
    header = json.loads(bytes(data[8 : 8 + header_bytes]))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        dtype = dtype_named(entry["dtype"])
        yield name, dtype, tuple(entry["shape"]), np.frombuffer(data[begin:end], lane_type(dtype))


def write_tensors(path: Path, tensors: Mapping[str, tuple[DType, tuple[int, ...], Lanes]]) -> None:
    """One safetensors file, tensors in the mapping's order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape, lanes) in tensors.items():
        header[name] = {"dtype": dtype.name, "shape": list(shape), "data_offsets": [offset, offset + lanes.nbytes]}
        offset += lanes.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, lanes in tensors.values():
            file.write(np.ascontiguousarray(lanes).data)


def checkpoint_files(path: Path) -> list[Path]:
    """The safetensors files of one checkpoint: a file, or a directory of them."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    if not files:
        raise Invalid(f"{path} holds no *.safetensors", remedy="name a safetensors file, or a directory with some")
    return files


def load_pair(old: Path, new: Path) -> Pair:
    """Two checkpoints of equal names, types and shapes, copied into memory."""
    before = {name: lanes for file in checkpoint_files(old) for name, _, _, lanes in read_tensors(file)}
    tensors = []
    for file in checkpoint_files(new):
        for name, dtype, shape, lanes in read_tensors(file):
            if name not in before or before[name].nbytes != lanes.nbytes:
                raise Invalid(f"tensor {name!r} of {new} is not in {old}, or has another size there")
            tensors.append(TensorPair(name, dtype, shape, before[name].copy(), lanes.copy()))
    return Pair(new.name, tuple(tensors))


def successive(directory: Path) -> Iterator[Pair]:
    """All neighbouring pairs of the checkpoints in `directory` (files or directories), in name order, one in memory at a time."""
    entries = sorted(path for path in directory.iterdir() if path.suffix == ".safetensors" or any(path.glob("*.safetensors")))
    if len(entries) < 2:
        raise Invalid(f"{directory} holds {len(entries)} checkpoints", remedy="at least two are needed to make a pair")
    for old, new in pairwise(entries):
        yield load_pair(old, new)
