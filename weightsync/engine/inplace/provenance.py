"""Where the elements of tensors came from while a loader moves them about.

Every lane of every checkpoint tensor has a number. A tensor that only moved such lanes (a clone, a concatenation, a flip) has a *shadow*:
their numbers, in the same places of its storage, -1 for what came from nowhere. What was computed has none, only the names behind it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

NOWHERE = -1
_LANE_BITS = 44  # of a number; the rest says which tensor
# What a type can be converted to without a bit being lost.
WIDENS = {
    torch.bfloat16: (torch.float32, torch.float64),
    torch.float16: (torch.float32, torch.float64),
    torch.float32: (torch.float64,),
}


@dataclass
class Origin:
    """What is known of a storage: `first`, the number of its first lane (a checkpoint tensor itself), or `shadow`; neither: computed."""

    alive: StorageWeakRef
    dtype: torch.dtype
    names: frozenset[str]
    first: int | None = None
    shadow: torch.Tensor | None = None
    why: str = ""


class View:
    """How a tensor looks at its storage, in lanes: a complex element is two."""

    def __init__(self, tensor: Any) -> None:
        self.shape, self.strides, self.offset = tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
        self.dtype = tensor.dtype
        if tensor.is_complex():
            self.shape = (*self.shape, 2)
            self.strides = (*(2 * stride for stride in self.strides), 1)
            self.offset *= 2

    def of(self, lanes: torch.Tensor) -> torch.Tensor:
        """The same look at other values of that storage."""
        return torch.as_strided(lanes, self.shape, self.strides, self.offset)

    def expanded(self, shape: tuple[int, ...]) -> "View":
        """Broadcast to `shape` (in lanes)."""
        wide = torch.empty_strided(self.shape, self.strides, device="meta").expand(shape)
        found = object.__new__(View)
        found.shape, found.strides, found.offset, found.dtype = tuple(wide.shape), tuple(wide.stride()), self.offset, self.dtype
        return found


def key_of(tensor: Any) -> int:
    """Identifies a storage, for as long as something refers to it, weakly too."""
    return int(tensor.untyped_storage()._cdata)


def lanes_of(tensor: Any) -> int:
    """How many lanes the whole storage has."""
    return int(tensor.untyped_storage().nbytes()) // (tensor.element_size() // (2 if tensor.is_complex() else 1))


@dataclass
class Provenance:
    """All that is known. Storages that are gone are forgotten."""

    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    firsts: dict[str, int] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)
    _known: dict[int, Origin] = field(default_factory=dict)
    _prune_at: int = 64

    def add_source(self, name: str, tensor: Any) -> None:
        """`tensor` fills its storage and is the checkpoint's `name`."""
        if name not in self.firsts:
            self.firsts[name], self.dtypes[name] = len(self._names) << _LANE_BITS, tensor.dtype
            self._names.append(name)
        self._add(tensor, Origin(_weak(tensor), tensor.dtype, frozenset([name]), first=self.firsts[name]))

    def of(self, tensor: Any) -> Origin | None:
        """What is known of the storage of a tensor."""
        found = self._known.get(key_of(tensor))
        return None if found is None or found.alive.expired() else found

    def numbers(self, tensor: Any) -> torch.Tensor | None:
        """The numbers of its elements (lanes, if complex), in its shape; None where they are not known, or are those of other types."""
        origin, view = self.of(tensor), View(tensor)
        if origin is None or not self._fits(origin, tensor):
            return None
        if origin.shadow is not None:
            return view.of(origin.shadow)
        if origin.first is None:
            return None
        return view.of(torch.arange(origin.first, origin.first + lanes_of(tensor)))

    def moved(self, tensor: Any, numbers: torch.Tensor, names: frozenset[str]) -> None:
        """`tensor` was filled with these lanes of these tensors."""
        origin = self.of(tensor)
        if origin is None or origin.shadow is None:
            origin = Origin(_weak(tensor), tensor.dtype, names, shadow=torch.full((lanes_of(tensor),), NOWHERE))
            self._add(tensor, origin)
        assert origin.shadow is not None  # noqa: S101 - just made
        View(tensor).of(origin.shadow).copy_(numbers)
        origin.names |= names

    def computed(self, tensor: Any, names: frozenset[str], why: str) -> None:
        """`tensor` was computed from these."""
        self._add(tensor, Origin(_weak(tensor), tensor.dtype, names, why=why))

    def exact(self, names: frozenset[str], dtype: torch.dtype) -> bool:
        """Whether values of all these tensors keep all their bits as `dtype`."""
        return all(dtype is self.dtypes[name] or dtype in WIDENS.get(self.dtypes[name], ()) for name in names)

    def home(self, number: int) -> tuple[str, int]:
        """The tensor that a number belongs to, and which of its lanes it is."""
        return self._names[number >> _LANE_BITS], number & ((1 << _LANE_BITS) - 1)

    def _fits(self, origin: Origin, tensor: Any) -> bool:
        # As it is, or as other bits of the same width: then it can only be copied to what is seen the same way.
        return bool(tensor.element_size() == torch.empty((), dtype=origin.dtype).element_size())

    def _add(self, tensor: Any, origin: Origin) -> None:
        self._known[key_of(tensor)] = origin
        if len(self._known) > self._prune_at:
            self._known = {key: one for key, one in self._known.items() if not one.alive.expired()}
            self._prune_at = 64 + 2 * len(self._known)


def _weak(tensor: Any) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def runs(numbers: torch.Tensor, view: View) -> Iterator[tuple[int, int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Cuts lanes that are to lie as `view` says into strided pieces: first number, target, shape, steps of the numbers, target strides."""
    yield from _runs(numbers, view.offset, view.shape, view.strides)


def _runs(numbers: torch.Tensor, target: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Iterator[Any]:
    if not numbers.numel():
        return
    first = int(numbers.reshape(-1)[0])
    steps = tuple(int(numbers.select(at, 1).reshape(-1)[0]) - first if size > 1 else 0 for at, size in enumerate(shape))
    expected = _affine(first, shape, steps)
    same = (numbers == expected) & (numbers >> _LANE_BITS == first >> _LANE_BITS)
    if bool(same.all()):
        yield first, target, shape, steps, strides
        return
    at = next(axis for axis, size in enumerate(shape) if size > 1)
    rows = same.movedim(at, 0).reshape(shape[at], -1).all(1)
    good = int(rows.logical_not().nonzero()[0, 0])
    # `good` rows go together; where not even the first does, it is cut further along the next axis.
    count = max(good, 1)
    head = (*shape[:at], count, *shape[at + 1 :])
    yield from _runs(numbers.narrow(at, 0, count), target, head, strides)
    tail = (*shape[:at], shape[at] - count, *shape[at + 1 :])
    yield from _runs(numbers.narrow(at, count, shape[at] - count), target + count * strides[at], tail, strides)


def _affine(first: int, shape: tuple[int, ...], steps: tuple[int, ...]) -> torch.Tensor:
    found = torch.full((1,) * len(shape), first)
    for at, (size, step) in enumerate(zip(shape, steps, strict=True)):
        found = found + (torch.arange(size) * step).reshape([-1 if other == at else 1 for other in range(len(shape))])
    return found
