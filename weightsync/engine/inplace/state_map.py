"""The layout map of a state dict whose names and shapes are the checkpoint's: nothing needs to be recorded."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from weightsync.engine.inplace.axes import strided
from weightsync.engine.inplace.dtypes import dtype_name, shape_of
from weightsync.engine.inplace.layout_map import Described, Home, LayoutMap, Part
from weightsync.engine.inplace.provenance import View, key_of, lanes_of
from weightsync.engine.inplace.widening import widening
from weightsync.errors import Invalid
from weightsync.format.layout import Layout


def state_map(state: Mapping[str, Any], layout: Layout | None = None) -> LayoutMap:
    """Each tensor of `state` is the checkpoint's of that name; of names for the same elements the first counts.

    `layout`: the checkpoint's, whose types may be narrower. Raises `Invalid` for a tensor whose elements overlap.
    """
    tensors: dict[str, Described] = {}
    parts: list[Part] = []
    names: dict[int, list[str]] = {}
    seen: set[object] = set()
    for name in sorted(state):
        tensor = state[name].detach()
        view = View(tensor)
        identity = (key_of(tensor), view.offset, view.shape, view.strides, tensor.dtype)
        if tensor.numel() and identity in seen:
            continue
        seen.add(identity)
        tensors[name] = Described(_dtype(name, tensor, layout), shape_of(tensor))
        if tensor.numel():
            home = names.setdefault(key_of(tensor), [])
            home.append(name)
            parts.append(Part(name, home[0], _where(name, view)))
    homes = {found[0]: _home(found, state) for found in names.values()}
    _check_apart(homes, parts)
    return LayoutMap(tensors, homes, tuple(parts))


def _where(name: str, view: View) -> Any:
    steps, step = [], 1
    for size in reversed(view.shape):
        steps.append(step)
        step *= size
    found = strided(0, view.offset, view.shape, steps[::-1], view.strides)
    expanded = any(stride == 0 and size > 1 for size, stride in zip(view.shape, view.strides, strict=True))
    if found is None or expanded:
        raise Invalid(f"elements of {name!r} share memory", remedy="make it contiguous")
    return found[0]


def _check_apart(homes: Mapping[str, Home], parts: list[Part]) -> None:
    for name, home in homes.items():
        taken = np.zeros(home.lanes if len(home.names) > 1 else 0, np.bool_)
        for part in parts if len(home.names) > 1 else ():
            if part.parameter == name:
                region = part.where.of(taken)
                if region.any():
                    raise Invalid(
                        f"{part.tensor!r} shares elements with another tensor", remedy="give each a storage of its own, or tie them"
                    )
                region[...] = True


def _home(names: list[str], state: Mapping[str, Any]) -> Home:
    first = state[names[0]].detach()
    for name in names[1:]:
        if state[name].dtype is not first.dtype:
            raise Invalid(f"{name!r} and {names[0]!r} share memory as different types", remedy="give each a storage of its own")
    return Home(dtype_name(names[0], first.dtype), lanes_of(first), tuple(names))


def _dtype(name: str, tensor: Any, layout: Layout | None) -> str:
    own = dtype_name(name, tensor.dtype)
    number = layout.index.get(name) if layout else None
    if layout is None or number is None:
        return own
    theirs = layout.tensors[number].dtype.name
    return theirs if widening(theirs, own) else own
