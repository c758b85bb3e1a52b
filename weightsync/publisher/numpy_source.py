"""NumPy arrays as tensors: any strides, either byte order, and the small float types of `ml_dtypes`."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightsync.errors import Invalid, Unsupported
from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import Tensor

_NAMES = {
    **{f"float{8 * size}": f"F{8 * size}" for size in (2, 4, 8)},
    **{f"int{8 * size}": f"I{8 * size}" for size in (1, 2, 4, 8)},
    **{f"uint{8 * size}": f"U{8 * size}" for size in (1, 2, 4, 8)},
    "bool": "BOOL",
    "complex64": "C64",
    "complex128": "C128",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}


def describe_array(name: str, array: NDArray[Any]) -> tuple[Tensor, object, Callable[[memoryview], None]]:
    """(tensor, identity, copy) of an array. Raises `Unsupported` naming it for types that are not tensors' elements."""
    kind = _NAMES.get(array.dtype.name)
    if kind is None:
        raise Unsupported(f"array {name!r} has the type {array.dtype}, which cannot be published", remedy=f"known: {', '.join(_NAMES)}")
    if isinstance(array, np.ma.MaskedArray):
        raise Invalid(f"array {name!r} is masked", remedy="fill it first")

    # Copied as plain integers, so that no conversion of floats can touch a bit.
    size = array.dtype.itemsize
    bits = np.dtype(f"u{size}") if size <= 8 else np.dtype((np.void, size))

    def copy(into: memoryview) -> None:
        little = array.dtype.newbyteorder("<")
        source = array if array.dtype == little else array.astype(little)
        np.copyto(np.frombuffer(into, bits).reshape(array.shape), source.view(bits))

    identity = (array.__array_interface__["data"][0], array.shape, array.strides, kind) if array.size else None
    return Tensor(name, DTYPES[kind], array.shape), identity, copy
