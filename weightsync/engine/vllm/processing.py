"""What an engine does to a layer's parameters after loading: nothing, a permutation that is learned, or something that no write reaches.

A layer is processed for real last, with the parameters that were loaded; before that, where these were touched, once more for each
pattern that is pushed through.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from weightsync.engine.inplace import Permutation, learn_permutation
from weightsync.errors import Corrupt

_DONE = "_already_called_process_weights_after_loading"


class _Touches(TorchDispatchMode):
    """Notes the storages that an operation was given. Views count: what packs a weight may run unseen, with no more than its view seen."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Lets it run."""
        self.storages.update(_storage(one) for one in tree_flatten((args, kwargs or {}))[0] if isinstance(one, torch.Tensor))
        return func(*args, **(kwargs or {}))


class Processing:
    """`permutations` and `opaque` (why) by full name of the parameter, of all layers that were processed.

    `spoilt` are those that vLLM's own reload would leave in another form than its start did: processing them again gives other bits.
    """

    def __init__(self) -> None:
        self.permutations: dict[str, Permutation] = {}
        self.opaque: dict[str, str] = {}
        self.spoilt: set[str] = set()

    def watch(self, name: str, layer: Any) -> None:
        """Has the next processing of `layer` watched; later ones run as they are."""
        method, process = layer.quant_method, layer.quant_method.process_weights_after_loading

        def once(found: Any) -> None:
            if found is not layer:  # the method serves several layers
                process(found)
                return
            method.process_weights_after_loading = process
            self._look(name, layer, process)

        method.process_weights_after_loading = once

    def _look(self, name: str, layer: Any, process: Callable[[Any], None]) -> None:
        method = layer.quant_method
        loaded = {key: (parameter, parameter.data) for key, parameter in layer._parameters.items() if parameter is not None}
        copies = {key: data.clone() for key, (_, data) in loaded.items()}
        state = dict(method.__dict__)
        keeps = _closures(layer)
        touches = _Touches()
        with touches:
            process(layer)
        hidden = _closures(layer) != keeps
        unclear = {
            key: now.data.clone()
            for key, (_, data) in loaded.items()
            if (now := layer._parameters.get(key)) is not None
            and now.numel()
            and (hidden or _storage(data) in touches.storages or _storage(now.data) != _storage(data))
        }
        if not unclear:
            return

        def again(with_data: dict[str, Any], *, as_at_first: bool = True) -> None:
            if as_at_first:  # a method that remembers having been here may do only half of its work
                method.__dict__.clear()
                method.__dict__.update(state)
            if hasattr(layer, _DONE):
                delattr(layer, _DONE)
            for key, (parameter, _) in loaded.items():
                parameter.data = with_data[key]
                layer._parameters[key] = parameter
            process(layer)

        def fresh() -> dict[str, Any]:
            return {key: data.clone() for key, data in copies.items()}

        def gives_the_same(key: str) -> bool:
            now = layer._parameters[key].data
            return now.shape == unclear[key].shape and torch.equal(_bytes(now), _bytes(unclear[key]))

        again(fresh(), as_at_first=False)
        self.spoilt |= {f"{name}.{key}" for key in unclear if not gives_the_same(key)}
        for key in unclear:
            self._learn(f"{name}.{key}", key, fresh, layer, again)
        again(fresh())
        if not all(gives_the_same(key) for key in unclear):
            raise Corrupt(f"layer {name!r} comes out differently each time that it is processed", remedy="use vLLM's own loader")

    def _learn(self, full: str, key: str, fresh: Callable[[], dict[str, Any]], layer: Any, again: Callable[[dict[str, Any]], None]) -> None:
        def repack(pattern: Any) -> Any:
            again(fresh() | {key: pattern})
            return layer._parameters[key].data

        like = fresh()[key]
        found = learn_permutation(tuple(like.shape), like.dtype, repack)
        if found is None:
            self.opaque[full] = "the engine computes it after loading"
        elif found.where is not None and found.where.target == 0 and all(axis.source == axis.target for axis in found.where.axes):
            self.opaque[full] = "the engine keeps another form of it beside it"
        else:
            self.permutations[full] = found


def _closures(layer: Any) -> dict[str, int]:
    """Functions of a layer that carry something with them, such as a packed weight."""
    return {key: id(value) for key, value in vars(layer).items() if getattr(value, "__closure__", None)}


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _bytes(tensor: Any) -> Any:
    return tensor.contiguous().view(torch.uint8)
