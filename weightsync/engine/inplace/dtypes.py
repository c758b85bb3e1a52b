"""Types of torch and of layouts, and the bits of torch tensors."""

from typing import Any

import torch

from weightsync.errors import Unsupported

NAMES = {
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
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def dtype_name(what: str, dtype: Any) -> str:
    """As layouts call it. Raises `Unsupported` naming `what`."""
    try:
        return NAMES[dtype]
    except KeyError:
        raise Unsupported(f"tensor {what!r} has the type {dtype}, which has no bits of its own") from None


def shape_of(tensor: Any) -> tuple[int, ...]:
    """In elements, as layouts count them: torch counts bytes of packed 4-bit floats."""
    sizes = tuple(int(size) for size in tensor.shape)
    return (*sizes[:-1], 2 * sizes[-1]) if NAMES.get(tensor.dtype) == "F4" and sizes else sizes


def lane_bytes(tensor: Any) -> int:
    """Bytes of one of its lanes."""
    return int(tensor.element_size()) // (2 if tensor.is_complex() else 1)


def storage_bits(tensor: Any) -> Any:
    """All lanes of its storage as integers, one-dimensional; writing to it writes to the tensor."""
    with torch.no_grad():
        return torch.empty(0, dtype=BITS[lane_bytes(tensor)], device=tensor.device).set_(tensor.untyped_storage())
