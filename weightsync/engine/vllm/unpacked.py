"""Linears of vLLM's CPU build left as they were loaded, as they are on GPUs; they are packed into handles otherwise."""

from typing import Any

import torch
import vllm.model_executor.layers.utils as layer_utils


def leave_unpacked() -> None:
    """For the models that this process loads from now on. Only 2-D weights: other ones have kernels of their own."""
    original = layer_utils.dispatch_cpu_unquantized_gemm
    if getattr(original, "weightsync", False):
        return

    def plain(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim != 2:
            original(layer, remove_weight=remove_weight)
        else:
            layer.cpu_linear = torch.nn.functional.linear

    plain.weightsync = True  # type: ignore[attr-defined]
    layer_utils.dispatch_cpu_unquantized_gemm = plain
