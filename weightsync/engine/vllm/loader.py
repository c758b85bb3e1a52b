"""vLLM's own loader, watched: where each element of the checkpoint lands, and what becomes of parameters after loading."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from weightsync.engine.inplace import LayoutMap, Recorder
from weightsync.engine.vllm.processing import Processing
from weightsync.engine.vllm.unpacked import leave_unpacked
from weightsync.errors import Unsupported

_found: WeakKeyDictionary[Any, tuple[LayoutMap, Processing]] = WeakKeyDictionary()


class RecordingLoader(DefaultModelLoader):
    """Load format `weightsync`."""

    def __init__(self, load_config: Any) -> None:
        extra = dict(load_config.model_loader_extra_config or {})
        if extra.pop("unpacked", False):
            leave_unpacked()
        super().__init__(replace(load_config, load_format="auto", model_loader_extra_config=extra))
        self._recorder: Recorder | None = None

    def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
        """What the checkpoint holds, known to the recorder while one records."""
        weights = super().get_all_weights(model_config, model)
        yield from self._recorder.stream(weights) if self._recorder else weights

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Loads, records, and has each layer's processing watched when it comes."""
        self._recorder = Recorder(dict(model.named_parameters(remove_duplicate=False)))
        try:
            with self._recorder:
                super().load_weights(model, model_config)
            processing = Processing()
            for name, module in model.named_modules():
                if isinstance(getattr(module, "quant_method", None), QuantizeMethodBase):
                    processing.watch(name, module)
            _found[model] = (self._recorder.layout_map(), processing)
        finally:
            self._recorder = None


def map_of(model: Any) -> tuple[LayoutMap, frozenset[str]]:
    """The layout map of a model that this loader loaded, after processing, and the parameters that vLLM's own reload spoils.

    Raises `Unsupported` for models that another loader loaded.
    """
    if model not in _found:
        raise Unsupported("this model was loaded by another loader", remedy="start vLLM with --load-format weightsync")
    layout_map, processing = _found[model]
    return layout_map.repacked(processing.permutations).without(processing.opaque), frozenset(processing.spoilt)
