"""The table of tensors of a version: names, types, shapes, aliases, and how lanes are cut into chunks."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from blake3 import blake3

from weightsync.errors import Corrupt, Invalid
from weightsync.format import canonical
from weightsync.format.dtypes import DType, dtype_named
from weightsync.format.fields import Fields
from weightsync.format.limits import (
    DEFAULT_CHUNK_LANES,
    FORMAT_VERSION,
    MAX_CHUNK_LANES,
    MAX_CHUNKS,
    MAX_DIMENSIONS,
    MAX_IMAGE_BYTES,
    MAX_INTEGER,
    MAX_TENSORS,
    MIN_CHUNK_LANES,
)
from weightsync.format.names import check_tensor

LEAF_BYTES = {"xxh3-128": 16, "blake3": 32}
ALIGNMENT = 64  # of each tensor in an image, bytes


@dataclass(frozen=True)
class Tensor:
    """One stored tensor; `shape` counts elements."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @cached_property
    def lanes(self) -> int:
        """Number of lanes."""
        return self.dtype.lanes(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.lanes * self.dtype.lane_bytes


class Chunk(NamedTuple):
    """A range of a tensor's lanes. `offset` and `nbytes` are bytes in an image; `number` counts over the whole layout."""

    number: int
    tensor: int
    start_lane: int
    lanes: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Layout:
    """Tensors in code-point order of their names. Build with `make_layout` or `parse`, which check everything."""

    tensors: tuple[Tensor, ...]
    aliases: tuple[tuple[str, str], ...]
    chunk_lanes: int
    leaf: str

    def to_bytes(self) -> bytes:
        """The canonical JSON that is stored under `layouts/<digest>`."""
        return canonical.to_bytes(
            {
                "aliases": [list(pair) for pair in self.aliases],
                "chunk_lanes": self.chunk_lanes,
                "format": FORMAT_VERSION,
                "kind": "layout",
                "leaf": self.leaf,
                "tensors": [[t.name, t.dtype.name, list(t.shape)] for t in self.tensors],
            }
        )

    @cached_property
    def digest(self) -> str:
        """BLAKE3 of `to_bytes`, hexadecimal."""
        return blake3(self.to_bytes()).hexdigest()

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Byte offset of each tensor in an image."""
        offsets, end = [], 0
        for tensor in self.tensors:
            offsets.append(end)
            end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        return tuple(offsets)

    @cached_property
    def image_bytes(self) -> int:
        """Size of an image, gaps between aligned tensors included."""
        return self.offsets[-1] + self.tensors[-1].nbytes if self.tensors else 0

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all tensors, without gaps."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @cached_property
    def lanes(self) -> int:
        """Lanes of all tensors."""
        return sum(tensor.lanes for tensor in self.tensors)

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """All chunks, tensor after tensor; a tensor without elements has none."""
        chunks: list[Chunk] = []
        for number, (tensor, offset) in enumerate(zip(self.tensors, self.offsets, strict=True)):
            size = tensor.dtype.lane_bytes
            for start in range(0, tensor.lanes, self.chunk_lanes):
                lanes = min(self.chunk_lanes, tensor.lanes - start)
                chunks.append(Chunk(len(chunks), number, start, lanes, offset + start * size, lanes * size))
        return tuple(chunks)

    @cached_property
    def first_chunks(self) -> tuple[int, ...]:
        """For each tensor the number of its first chunk, and at the end the number of all chunks."""
        firsts, count = [], 0
        for tensor in self.tensors:
            firsts.append(count)
            count += -(-tensor.lanes // self.chunk_lanes)
        return (*firsts, count)

    @cached_property
    def index(self) -> dict[str, int]:
        """Tensor numbers by name, aliases included."""
        found = {tensor.name: number for number, tensor in enumerate(self.tensors)}
        return found | {name: found[target] for name, target in self.aliases}

    @classmethod
    def parse(cls, data: bytes) -> "Layout":
        """Reads and checks stored bytes. Raises `Corrupt`, or `Unsupported` for what is newer."""
        fields = Fields(canonical.parse(data, "layout"), "layout")
        fields.constant("kind", "layout")
        fields.constant("format", FORMAT_VERSION)
        leaf = fields.text("leaf")
        chunk_lanes = fields.integer("chunk_lanes", least=1)
        tensors = [_tensor(entry) for entry in fields.array("tensors")]
        aliases = [_alias(entry) for entry in fields.array("aliases")]
        fields.done()
        try:
            layout = make_layout(tensors, aliases, chunk_lanes=chunk_lanes, leaf=leaf)
        except Invalid as error:
            raise Corrupt(f"layout is not valid: {error}") from error
        if layout.to_bytes() != data:
            raise Corrupt("layout is not in order")
        return layout


def make_layout(
    tensors: Iterable[Tensor],
    aliases: Iterable[tuple[str, str]] = (),
    *,
    chunk_lanes: int = DEFAULT_CHUNK_LANES,
    leaf: str = "xxh3-128",
) -> Layout:
    """A checked layout, put in order. `aliases` are (name, name of the stored tensor). Raises `Invalid` naming the culprit."""
    ordered = tuple(sorted(tensors, key=lambda tensor: tensor.name))
    pairs = tuple(sorted(aliases))
    if not MIN_CHUNK_LANES <= chunk_lanes <= MAX_CHUNK_LANES:
        raise Invalid(f"chunk of {chunk_lanes} lanes", remedy=f"choose {MIN_CHUNK_LANES} to {MAX_CHUNK_LANES}")
    if leaf not in LEAF_BYTES:
        raise Invalid(f"leaf digest {leaf!r} is not known", remedy=f"choose one of {', '.join(LEAF_BYTES)}")
    if len(ordered) + len(pairs) > MAX_TENSORS:
        raise Invalid(f"{len(ordered) + len(pairs)} tensors", remedy=f"at most {MAX_TENSORS} are allowed")
    _check_names([tensor.name for tensor in ordered], pairs)
    for tensor in ordered:
        _check_shape(tensor)
    layout = Layout(ordered, pairs, chunk_lanes, leaf)
    if layout.image_bytes > MAX_IMAGE_BYTES:
        raise Invalid(f"a checkpoint of {layout.image_bytes} bytes is beyond the limit of {MAX_IMAGE_BYTES}")
    if layout.first_chunks[-1] > MAX_CHUNKS:
        raise Invalid(f"{layout.first_chunks[-1]} chunks, more than {MAX_CHUNKS}", remedy="choose larger chunks")
    return layout


def _check_names(stored: list[str], aliases: tuple[tuple[str, str], ...]) -> None:
    seen = set(stored)
    if len(seen) != len(stored):
        twice = next(name for name in stored if stored.count(name) > 1)
        raise Invalid(f"tensor {twice!r} stands twice")
    for name in stored:
        check_tensor(name)
    for name, target in aliases:
        if check_tensor(name) in seen:
            raise Invalid(f"alias {name!r} is a tensor, or stands twice")
        if target not in seen or target == name:
            raise Invalid(f"alias {name!r} names {target!r}, which is not a stored tensor")
    if len({name for name, _ in aliases}) != len(aliases):
        raise Invalid("an alias stands twice")


def _check_shape(tensor: Tensor) -> None:
    if len(tensor.shape) > MAX_DIMENSIONS:
        raise Invalid(f"tensor {tensor.name!r} has {len(tensor.shape)} dimensions, more than {MAX_DIMENSIONS}")
    if any(size < 0 for size in tensor.shape) or max((*tensor.shape, prod(tensor.shape))) > MAX_INTEGER:
        raise Invalid(f"tensor {tensor.name!r} has an impossible shape {list(tensor.shape)}")
    tensor.dtype.lanes(tensor.shape)


def _tensor(entry: Any) -> Tensor:
    match entry:
        case [str(name), str(dtype), list(shape)] if all(type(size) is int for size in shape):
            return Tensor(name, dtype_named(dtype), tuple(shape))
    raise Corrupt("an entry of the layout is not [name, dtype, shape]")


def _alias(entry: Any) -> tuple[str, str]:
    match entry:
        case [str(name), str(target)]:
            return name, target
    raise Corrupt("an alias of the layout is not [name, target]")


def describe_difference(old: Layout, new: Layout) -> str:
    """One line saying why `new` cannot be a delta on `old`; empty when it can."""
    if old.digest == new.digest:
        return ""
    before = {tensor.name: (tensor.dtype.name, tensor.shape) for tensor in old.tensors}
    after = {tensor.name: (tensor.dtype.name, tensor.shape) for tensor in new.tensors}
    added, removed = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
    retyped = sorted(name for name in after.keys() & before.keys() if after[name] != before[name])
    parts = [
        f"{len(names)} {word} (first {names[0]!r})"
        for word, names in (("added", added), ("removed", removed), ("retyped", retyped))
        if names
    ]
    return ", ".join(parts) or "aliases or chunk size changed"
