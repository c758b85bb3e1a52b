"""Torch tensors: any device, any strides, tied, sharded (DTensor). The only module of the publisher that imports torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from weightsync.errors import Invalid, Unsupported
from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import Tensor

_NAMES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.complex128: "C128",
    torch.bool: "BOOL",
    **{getattr(torch, f"{'u' * unsigned}int{bits}"): f"{'IU'[unsigned]}{bits}" for bits in (8, 16, 32, 64) for unsigned in (False, True)},
    **{
        getattr(torch, name): kind
        for name, kind in (
            ("float8_e4m3fn", "F8_E4M3"),
            ("float8_e5m2", "F8_E5M2"),
            ("float8_e8m0fnu", "F8_E8M0"),
            ("float4_e2m1fn_x2", "F4"),
        )
        if hasattr(torch, name)
    },
}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def describe_torch(name: str, value: Any) -> tuple[Tensor, object, Callable[[memoryview], None]]:
    """(tensor, identity, copy) of a tensor. Raises `Invalid` or `Unsupported` naming it.

    `copy` of a DTensor gathers it: every rank that holds a part must take part, in the same order.
    """
    if not isinstance(value, torch.Tensor):
        raise Invalid(f"{name!r} is a {type(value).__name__}, not a tensor", remedy="publish a flat state dict of tensors only")
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        raise Invalid(f"tensor {name!r} is sparse, quantized or without storage", remedy="publish plain (strided) tensors")
    kind = _NAMES.get(value.dtype)
    if kind is None:
        raise Unsupported(f"tensor {name!r} has the type {value.dtype}, which cannot be published")

    def copy(into: memoryview) -> None:
        with torch.no_grad():
            source = value.full_tensor() if hasattr(value, "full_tensor") else value
            bits = _as_bits(source.detach())
            torch.from_numpy(np.frombuffer(into, np.uint8)).view(bits.dtype).view(bits.shape).copy_(bits)

    return Tensor(name, DTYPES[kind], _shape(value, kind)), _identity(value), copy


def _as_bits(tensor: Any) -> Any:
    """The same elements as integers (float arithmetic could change a NaN); complex ones get a last dimension of two."""
    plain = tensor.resolve_conj().resolve_neg()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    return plain.view(_BITS[plain.element_size()])


def _shape(value: Any, kind: str) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in value.shape)
    # Torch counts bytes of packed 4-bit floats, a layout counts elements.
    return (*sizes[:-1], 2 * sizes[-1]) if kind == "F4" and sizes else sizes


def _identity(value: Any) -> object:
    local = getattr(value, "_local_tensor", value)  # of a DTensor: the part this rank holds
    if local.numel() == 0:
        return None
    flags = (local.dtype, local.is_conj(), local.is_neg())
    return local.untyped_storage().data_ptr(), local.storage_offset(), tuple(value.shape), local.stride(), local.device, flags
