"""What an engine does to a layer's parameters after loading: nothing, a permutation that is learned, or something that no write reaches.

A layer is processed for real last, with the parameters that were loaded; before that, where its parameters were read, once more for each
pattern that is pushed through.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from weightsync.engine.inplace import Permutation, learn_permutation

_DONE = "_already_called_process_weights_after_loading"


class _Reads(TorchDispatchMode):
    """Notes the storages from which an operation made something new."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Lets it run."""
        inputs = [_storage(one) for one in tree_flatten((args, kwargs or {}))[0] if isinstance(one, torch.Tensor)]
        found = func(*args, **(kwargs or {}))
        made = {_storage(one) for one in tree_flatten(found)[0] if isinstance(one, torch.Tensor)}
        if not made or not made <= set(inputs):
            self.storages.update(inputs)
        return found


class Processing:
    """`permutations` and `opaque` (why) by full name of the parameter, of all layers that were processed."""

    def __init__(self) -> None:
        self.permutations: dict[str, Permutation] = {}
        self.opaque: dict[str, str] = {}

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
        loaded = {key: (parameter, parameter.data) for key, parameter in layer._parameters.items() if parameter is not None}
        copies = {key: data.clone() for key, (_, data) in loaded.items()}
        reads = _Reads()
        with reads:
            process(layer)
        unclear = [
            key
            for key, (_, data) in loaded.items()
            if (now := layer._parameters.get(key)) is not None
            and now.numel()
            and (_storage(data) in reads.storages or _storage(now.data) != _storage(data))
        ]
        if not unclear:
            return

        def again(with_data: dict[str, Any]) -> None:
            if hasattr(layer, _DONE):
                delattr(layer, _DONE)
            for key, (parameter, _) in loaded.items():
                parameter.data = with_data[key]
                layer._parameters[key] = parameter
            process(layer)

        for key in unclear:
            self._learn(f"{name}.{key}", key, copies, layer, again)
        again(copies)

    def _learn(self, full: str, key: str, copies: dict[str, Any], layer: Any, again: Callable[[dict[str, Any]], None]) -> None:
        def repack(pattern: Any) -> Any:
            again({other: data.clone() for other, data in copies.items()} | {key: pattern})
            return layer._parameters[key].data

        found = learn_permutation(tuple(copies[key].shape), copies[key].dtype, repack)
        if found is None:
            self.opaque[full] = "the engine computes it after loading"
        elif found.where is not None and found.where.target == 0 and all(axis.source == axis.target for axis in found.where.axes):
            self.opaque[full] = "the engine keeps another form of it beside it"
        else:
            self.permutations[full] = found


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)
