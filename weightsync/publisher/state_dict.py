"""Live tensors as a `Source`: copied once, into memory laid out like an image, before `publish` returns.

    plan = plan_tensors(tensors)        # looks at names, types, shapes and ties; copies nothing
    staged = stage(plan, buffer)        # copies; from here on the trainer may change its weights

Two names for the same elements (same storage, offset, shape and strides) are one stored tensor and an alias; the name that comes first
in order is the stored one. Values are copied as bits: NaN payloads, signed zeros and subnormals stay.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightsync.errors import Invalid
from weightsync.format.files import FileTable, NamedFile
from weightsync.format.layout import Chunk, Layout, Tensor, make_layout
from weightsync.format.limits import MAX_FILE_BYTES
from weightsync.format.names import check_file
from weightsync.format.refs import Ref
from weightsync.publisher.numpy_source import describe_array
from weightsync.publisher.source import Chunking

Copy = Callable[[memoryview], None]


@dataclass(frozen=True)
class Described:
    """One tensor of a state dict. `identity` is equal for ties and None where there can be none; `copy` writes its bytes."""

    tensor: Tensor
    identity: object
    copy: Copy


@dataclass(frozen=True)
class Plan:
    """What is to be copied, by tensor of the layout."""

    layout: Layout
    copies: tuple[Copy, ...]


def plan_tensors(tensors: Mapping[str, Any], chunking: Chunking | None = None) -> Plan:
    """Describes a flat mapping of names to torch tensors or NumPy arrays.

    Raises `Invalid` naming the tensor for what is no tensor or holds no plain elements, `Unsupported` for unknown types.
    """
    if not tensors:
        raise Invalid("there are no tensors to publish")
    stored: dict[str, Described] = {}
    aliases: list[tuple[str, str]] = []
    homes: dict[object, str] = {}
    for name in sorted(tensors):
        found = _describe(name, tensors[name])
        home = homes.setdefault(found.identity, name) if found.identity is not None else name
        if home == name:
            stored[name] = found
        else:
            aliases.append((name, home))
    cut = chunking or Chunking()
    layout = make_layout((found.tensor for found in stored.values()), aliases, chunk_lanes=cut.lanes, leaf=cut.leaf)
    return Plan(layout, tuple(stored[tensor.name].copy for tensor in layout.tensors))


def _describe(name: str, value: Any) -> Described:
    if not isinstance(name, str):
        raise Invalid(f"tensor name {str(name)[:80]!r} is not text")
    if isinstance(value, np.ndarray | np.generic):
        return Described(*describe_array(name, value if isinstance(value, np.ndarray) else np.asarray(value)))
    if any(base.__module__.split(".")[0] == "torch" for base in type(value).__mro__):
        from weightsync.publisher.torch_source import describe_torch  # noqa: PLC0415  who publishes arrays needs no torch

        return Described(*describe_torch(name, value))
    raise Invalid(
        f"{name!r} is a {type(value).__name__}, not a torch tensor or NumPy array",
        remedy="publish a flat state dict of tensors only",
    )


class Staged:
    """Copied tensors as a `Source`."""

    notes: Sequence[str] = ()

    def __init__(self, layout: Layout, data: memoryview, files: Mapping[str, bytes]) -> None:
        self.layout = layout
        self._data = data
        named = [NamedFile(check_file(name), Ref.of(_small(name, content))) for name, content in sorted(files.items())]
        self.files = FileTable(small=tuple(named))
        self.objects: Sequence[tuple[Ref, bytes]] = tuple({Ref.of(content): content for content in files.values()}.items())

    def read(self, chunk: Chunk, into: memoryview) -> memoryview:  # noqa: ARG002  nothing needs to be copied
        """See `Source.read`."""
        return self._data[chunk.offset : chunk.offset + chunk.nbytes]

    def check_unchanged(self) -> None:
        """Nobody else knows this memory."""

    def close(self) -> None:
        """The memory belongs to the caller."""


def stage(plan: Plan, buffer: NDArray[np.uint8], files: Mapping[str, bytes] | None = None) -> Staged:
    """Copies all tensors into `buffer`, of at least `image_bytes`, which must stay untouched while the result is used.

    `files`: small files to publish beside them, by name. Raises `Invalid`.
    """
    view = memoryview(buffer)  # type: ignore[arg-type]  # an array is a buffer
    staged = Staged(plan.layout, view, files or {})
    for tensor, offset, copy in zip(plan.layout.tensors, plan.layout.offsets, plan.copies, strict=True):
        if tensor.nbytes:
            copy(view[offset : offset + tensor.nbytes])
    return staged


def _small(name: str, content: bytes) -> bytes:
    if len(content) > MAX_FILE_BYTES:
        raise Invalid(f"file {name!r} has {len(content)} bytes, more than {MAX_FILE_BYTES}")
    if name.casefold().endswith(".safetensors"):
        raise Invalid(f"file {name!r} would be taken for tensors", remedy="publish its tensors instead")
    return content
