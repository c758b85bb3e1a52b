"""What a loader copies where, seen below everything that torch does on the way.

    layout_map = record(dict(model.named_parameters()), model.load_weights, lambda: checkpoint_tensors())

The loader runs as it is; a dispatch mode sees each copy. Both sides of a copy are strided views, so most parts are read off directly;
what passes through other tensors (a fusion by concatenation, a widening) is followed by the numbers of its lanes. A parameter that
something else writes to is opaque, with the reason.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from weightsync.engine.inplace.dtypes import dtype_name, shape_of
from weightsync.engine.inplace.layout_map import Described, LayoutMap
from weightsync.engine.inplace.provenance import NOWHERE, Origin, Provenance, View, key_of, lanes_of, runs
from weightsync.engine.inplace.written import Written
from weightsync.errors import Invalid

Tensors = Iterable[tuple[str, Any]]
Loader = Callable[[Iterator[tuple[str, Any]]], object]

_aten = torch.ops.aten
_SAME = {_aten.clone.default, _aten._to_copy.default, _aten.lift_fresh_copy.default, _aten.alias_copy.default}
_MOVES = {
    _aten.cat.default,
    _aten.stack.default,
    _aten.index_select.default,
    _aten.index.Tensor,
    _aten.flip.default,
    _aten.roll.default,
    _aten.repeat.default,
    _aten.permute_copy.default,
    _aten.transpose_copy.int,
    _aten.gather.default,
}
_CONSTANT = {_aten.zero_.default, _aten.fill_.Scalar, _aten.fill_.Tensor}
_MAX_PIECES = 1 << 16  # of one copy


def record(parameters: Mapping[str, Any], load: Loader, tensors: Tensors | Callable[[], Tensors]) -> LayoutMap:
    """The map of `parameters` (by name; buffers may be among them) that `load`, given the checkpoint's (name, tensor) pairs, fills.

    The loader runs once, for real. Raises what it raises, and `Invalid` where a tensor is no plain one.
    """
    recorder = Recorder(parameters)
    with recorder:
        load(recorder.stream(tensors() if callable(tensors) else tensors))
    return recorder.layout_map()


class Recorder(TorchDispatchMode):
    """For loaders that fetch the tensors themselves: pass these through `stream` or `source`, and load inside `with recorder:`."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__()
        self._parameters = dict(parameters)
        self._written = Written(self._parameters)
        self._origins = Provenance()
        self._described: dict[str, Described] = {}

    def stream(self, tensors: Tensors) -> Iterator[tuple[str, Any]]:
        """The same pairs, known from now on."""
        for name, tensor in tensors:
            yield name, self.source(name, tensor)

    def source(self, name: str, tensor: Any) -> Any:
        """A copy of `tensor`, which the loader is to be given in its place."""
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.device.type == "meta":
            raise Invalid(f"{name!r} is no plain tensor", remedy="give the loader the checkpoint's own tensors")
        with torch.no_grad():
            # A storage of its own, so that neither other tensors nor the checkpoint itself become part of the parameters.
            tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
            self._described[name] = Described(dtype_name(name, tensor.dtype), shape_of(tensor))
            self._origins.add_source(name, tensor)
        return tensor

    def layout_map(self) -> LayoutMap:
        """What was seen."""
        self._look_for_replaced()
        return self._written.layout_map(self._described)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Lets the operation run, then notes what it did."""
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if func is _aten.copy_.default:
            self._copied(args[0], args[1] if len(args) > 1 else kwargs["src"])
        elif func is _aten._foreach_copy_.default:
            for target, source in zip(args[0], args[1], strict=True):
                self._copied(target, source)
        elif getattr(func, "_schema", None) is not None and func._schema.is_mutable:
            self._mutated(func, args, kwargs)
        else:
            self._made(func, args, kwargs, found)
        return found

    def _copied(self, target: Any, source: Any) -> None:
        origin = self._origins.of(source)
        if self._written.knows(target):
            self._into_parameter(target, source, origin)
        elif origin is not None:
            numbers = self._numbers(source, origin, target.dtype)
            if numbers is None:
                self._origins.computed(target, origin.names, origin.why or f"converted to {target.dtype}")
            else:
                self._origins.moved(target, numbers.expand(View(target).shape), origin.names)
        elif (known := self._origins.of(target)) is not None and known.shadow is not None:
            View(target).of(known.shadow).fill_(NOWHERE)

    def _into_parameter(self, target: Any, source: Any, origin: Origin | None) -> None:
        view = View(target)
        if origin is None:
            self._written.fill(target, view)
            return
        if origin.first is None and origin.shadow is None:
            self._written.opaque(target, origin.why, origin.names)
            return
        why = self._unlike(source, origin, target.dtype)
        if why or not self._written.sees(target):
            self._written.opaque(target, why or "it is looked at as other bits", origin.names)
        elif origin.first is not None:
            seen = View(source).expanded(view.shape)
            self._written.part(target, view, next(iter(origin.names)), seen.offset, seen.strides)
        else:
            self._pieces(target, View(source).of(origin.shadow).expand(view.shape), origin)

    def _pieces(self, target: Any, numbers: torch.Tensor, origin: Origin) -> None:
        for count, (first, place, shape, steps, strides) in enumerate(runs(numbers, View(target))):
            if count >= _MAX_PIECES:
                self._written.opaque(target, "its elements are scattered", origin.names)
                return
            view = View(target)
            view.offset, view.shape, view.strides = place, shape, strides
            if first == NOWHERE:
                self._written.fill(target, view)
            else:
                name, lane = self._origins.home(first)
                self._written.part(target, view, name, lane, steps)

    def _mutated(self, func: Any, args: Any, kwargs: Any) -> None:
        inputs = tree_flatten((args, kwargs))[0]
        names = self._names(inputs)
        for value in _written_to(func, args, kwargs):
            if self._written.knows(value):
                if func in _CONSTANT:
                    self._written.fill(value, View(value))
                else:
                    self._written.opaque(value, f"written by {func}", names)
            elif (known := self._origins.of(value)) is not None:
                if func in _CONSTANT and known.shadow is not None:
                    View(value).of(known.shadow).fill_(NOWHERE)
                else:
                    self._origins.computed(value, names | known.names, f"written by {func}")
            elif names:
                self._origins.computed(value, names, f"written by {func}")

    def _made(self, func: Any, args: Any, kwargs: Any, found: Any) -> None:
        inputs = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
        names = self._names(inputs)
        if not names:
            return
        keys = {key_of(one) for one in inputs}
        for made in tree_flatten(found)[0]:
            if isinstance(made, torch.Tensor) and key_of(made) not in keys:
                numbers = self._moved_numbers(func, args, kwargs, made.dtype)
                if numbers is not None and numbers.shape == View(made).shape:
                    self._origins.moved(made, numbers, names)
                else:
                    self._origins.computed(made, names, f"computed by {func}")

    def _moved_numbers(self, func: Any, args: Any, kwargs: Any, dtype: torch.dtype) -> torch.Tensor | None:
        if func in _SAME:
            origin = self._origins.of(args[0])
            return self._numbers(args[0], origin, dtype) if origin is not None else None
        if func not in _MOVES:
            return None
        first = args[0]
        listed = first if isinstance(first, (list, tuple)) else [first]
        if any(one.is_complex() or one.dtype is not dtype for one in listed):
            return None
        shadows = []
        for one in listed:
            origin = self._origins.of(one)
            numbers = self._numbers(one, origin, dtype) if origin is not None else torch.full(one.shape, NOWHERE)
            if numbers is None:
                return None
            shadows.append(numbers)
        rest = [value.cpu() if isinstance(value, torch.Tensor) else value for value in args[1:]]
        if func is _aten.index.Tensor:
            rest = [[None if value is None else value.cpu() for value in args[1]]]
        return func(shadows if isinstance(first, (list, tuple)) else shadows[0], *rest, **kwargs)

    def _numbers(self, tensor: Any, origin: Origin, dtype: torch.dtype) -> torch.Tensor | None:
        return None if self._unlike(tensor, origin, dtype) else self._origins.numbers(tensor)

    def _unlike(self, tensor: Any, origin: Origin, dtype: torch.dtype) -> str:
        """Why `tensor`, copied to something of type `dtype`, would not keep its bits."""
        if origin.first is None and origin.shadow is None:
            return origin.why
        if tensor.dtype is not origin.dtype:
            same = tensor.dtype is dtype and tensor.element_size() == torch.empty((), dtype=origin.dtype).element_size()
            return "" if same else "it is looked at as other bits"
        return "" if self._origins.exact(origin.names, dtype) else f"converted to {dtype}"

    def _names(self, values: Iterable[Any]) -> frozenset[str]:
        found = [self._origins.of(value) for value in values if isinstance(value, torch.Tensor)]
        return frozenset(name for origin in found if origin is not None for name in origin.names)

    def _look_for_replaced(self) -> None:
        """Parameters that were given other tensors instead of being written to."""
        for name, parameter in self._parameters.items():
            if parameter.numel() and lanes_of(parameter) and not self._written.knows(parameter):
                self._written.replaced(name, parameter)
                origin = self._origins.of(parameter)
                if origin is None:
                    self._written.opaque(parameter, "replaced by something of unknown origin", frozenset())
                else:
                    self._into_parameter(parameter, parameter, origin)


def _written_to(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The tensors that an operation changes, also those in lists and those given as `out`."""
    found: list[Any] = []
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            found.extend(one for one in tree_flatten(value)[0] if isinstance(one, torch.Tensor))
    return found
