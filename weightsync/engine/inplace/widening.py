"""Values of a narrow type that an engine keeps in a wider one, bit for bit: bf16 in fp32, for instance."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]
_FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


class Widening(NamedTuple):
    """`widen` maps bits of the checkpoint's type to those of the parameter's; `narrow` back, which may lose some."""

    widen: Callable[[Bits], Bits]
    narrow: Callable[[Bits], Bits]

    def lost(self, wide: Bits) -> int:
        """How many lanes are no values of the narrow type."""
        return int(np.count_nonzero(self.widen(self.narrow(wide)) != wide))


def widening(narrow: str, wide: str) -> Widening | None:
    """Between two types, as layouts name them; None where values could not keep their bits."""
    if (narrow, wide) == ("BF16", "F32"):
        return Widening(_bf16_up, _bf16_down)
    if (narrow, wide) == ("BF16", "F64"):
        up, down = _cast("F32", "F64"), _cast("F64", "F32")
        return Widening(lambda bits: up(_bf16_up(bits)), lambda bits: _bf16_down(down(bits)))
    if narrow in _FLOATS and wide in _FLOATS and narrow < wide:
        return Widening(_cast(narrow, wide), _cast(wide, narrow))
    return None


def _bf16_up(bits: Bits) -> Bits:
    return bits.astype(np.uint32) << np.uint32(16)


def _bf16_down(bits: Bits) -> Bits:
    return (bits >> np.uint32(16)).astype(np.uint16)


def _cast(source: str, target: str) -> Callable[[Bits], Bits]:
    def cast(bits: Bits) -> Bits:
        with np.errstate(all="ignore"):
            found = np.ascontiguousarray(bits).view(_FLOATS[source]).astype(_FLOATS[target])
        return found.view(f"<u{found.itemsize}")

    return cast
