"""What was written to parameters, in order, and the map that this amounts to."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from weightsync.engine.inplace.axes import Strided, strided
from weightsync.engine.inplace.dtypes import dtype_name
from weightsync.engine.inplace.layout_map import Described, Home, LayoutMap, Part
from weightsync.engine.inplace.provenance import View, key_of, lanes_of


class _Event(NamedTuple):
    """A range of a storage was written; `tensor` empty: with something that is not from the checkpoint."""

    view: View
    tensor: str
    where: Strided | None


class _Storage:
    def __init__(self, tensor: Any, name: str) -> None:
        self.tensor, self.names = tensor, [name]
        self.dtype, self.lanes = tensor.dtype, lanes_of(tensor)
        self.events: list[_Event] = []
        self.opaque = ""
        self.computed: set[str] = set()


class Written:
    """Of `parameters` by name."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._storages: dict[int, _Storage] = {}
        self._replaced: list[str] = []
        for name, parameter in parameters.items():
            if parameter.numel() and lanes_of(parameter):
                self._add(name, parameter)

    def knows(self, tensor: Any) -> bool:
        """Whether it is a view of a parameter's storage."""
        return key_of(tensor) in self._storages

    def sees(self, tensor: Any) -> bool:
        """Whether it counts lanes as its parameter does."""
        return self._at(tensor).dtype is tensor.dtype

    def fill(self, target: Any, view: View) -> None:
        """Something that is not from the checkpoint."""
        self._at(target).events.append(_Event(view, "", None))

    def part(self, target: Any, view: View, name: str, lane: int, steps: tuple[int, ...]) -> None:
        """Lanes of tensor `name` from `lane` on in `steps`."""
        storage = self._at(target)
        found = strided(lane, view.offset, view.shape, steps, view.strides)
        if found is None:
            self.opaque(target, "lanes of it are met more than once", frozenset([name]))
            return
        storage.events.extend(_Event(view, name, where) for where in found if where.lanes)

    def opaque(self, target: Any, why: str, names: frozenset[str]) -> None:
        """A write cannot reach it."""
        storage = self._at(target)
        storage.opaque = storage.opaque or why
        storage.computed |= names

    def replaced(self, name: str, parameter: Any) -> None:
        """From now on `name` is this tensor."""
        for storage in self._storages.values():
            if name in storage.names:
                storage.names.remove(name)
        self._add(name, parameter)

    def layout_map(self, tensors: Mapping[str, Described]) -> LayoutMap:
        """The map of what stands at the end: later writes cover earlier ones."""
        parts: list[Part] = []
        homes: dict[str, Home] = {}
        opaque: dict[str, str] = {}
        outside: dict[str, int] = {}
        computed: dict[str, tuple[str, ...]] = {}
        for storage in self._storages.values():
            if not storage.names:
                continue
            name = storage.names[0]
            homes[name] = Home(dtype_name(name, storage.dtype), storage.lanes, tuple(storage.names))
            kept, holes = _last(storage)
            if storage.opaque:
                opaque[name] = storage.opaque
                computed[name] = tuple(sorted(storage.computed | {event.tensor for event in storage.events if event.tensor}))
                continue
            parts.extend(Part(event.tensor, name, event.where) for event in kept if event.where is not None)
            if holes:
                outside[name] = holes
        return LayoutMap(dict(tensors), homes, tuple(parts), opaque, outside, computed)

    def _add(self, name: str, parameter: Any) -> None:
        found = self._storages.get(key_of(parameter))
        if found is None:
            self._storages[key_of(parameter)] = _Storage(parameter.detach(), name)
        else:
            found.names.append(name)

    def _at(self, tensor: Any) -> _Storage:
        return self._storages[key_of(tensor)]


def _last(storage: _Storage) -> tuple[list[_Event], int]:
    """The events that nothing later wrote over, and how many lanes are not from the checkpoint; partly covered ones make it opaque."""
    written = np.zeros(storage.lanes, np.bool_)
    from_checkpoint, kept = 0, []
    for event in reversed(storage.events):
        region = _region(written, event)
        fresh = region.size - int(np.count_nonzero(region))
        if fresh and event.where is not None:
            if fresh < region.size:
                storage.opaque = storage.opaque or f"{event.tensor!r} is written over in part"
            from_checkpoint += fresh
            kept.append(event)
        region[...] = True
    return kept[::-1], storage.lanes - from_checkpoint


def _region(written: Any, event: _Event) -> Any:
    if event.where is not None:
        return event.where.of(written)
    return np.lib.stride_tricks.as_strided(written[event.view.offset :], event.view.shape, event.view.strides)
