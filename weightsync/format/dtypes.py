"""Element types and the integer *lanes* they are coded in.

Every value is diffed, stored and compared as unsigned integers of 1, 2, 4 or 8 bytes, little-endian: its *lanes*.
A bf16 element is one 16-bit lane, a complex64 element two 32-bit lanes, a byte of packed int4 one 8-bit lane.
Type names are those of safetensors.
"""

from dataclasses import dataclass
from enum import Enum
from math import prod

from weightsync.errors import Invalid, Unsupported


class Order(Enum):
    """How the bits of a lane map to an integer key that keeps the order of values."""

    FLOAT = "float"  # sign and magnitude: negative values are flipped
    SIGNED = "signed"  # two's complement: the bits themselves
    UNSIGNED = "unsigned"


@dataclass(frozen=True)
class DType:
    """One element type.

    `exponent_shift` and `exponent_bits` locate the exponent inside a lane; both are 0 where there is none.
    `lanes_per_element` is 2 for complex types. Packed sub-byte types have `elements_per_lane` 2.
    """

    name: str
    lane_bytes: int
    order: Order
    exponent_shift: int = 0
    exponent_bits: int = 0
    lanes_per_element: int = 1
    elements_per_lane: int = 1

    def lanes(self, shape: tuple[int, ...]) -> int:
        """Number of lanes of a tensor of this type and `shape`."""
        elements = prod(shape)
        if elements % self.elements_per_lane:
            raise Invalid(f"{self.name} of shape {list(shape)} does not fill whole bytes")
        return elements * self.lanes_per_element // self.elements_per_lane


def _floats() -> list[DType]:
    return [
        DType("BF16", 2, Order.FLOAT, 7, 8),
        DType("F16", 2, Order.FLOAT, 10, 5),
        DType("F32", 4, Order.FLOAT, 23, 8),
        DType("F64", 8, Order.FLOAT, 52, 11),
        DType("F8_E4M3", 1, Order.FLOAT, 3, 4),
        DType("F8_E5M2", 1, Order.FLOAT, 2, 5),
        DType("C64", 4, Order.FLOAT, 23, 8, lanes_per_element=2),
        DType("C128", 8, Order.FLOAT, 52, 11, lanes_per_element=2),
    ]


def _integers() -> list[DType]:
    return [
        *(DType(f"I{8 * size}", size, Order.SIGNED) for size in (1, 2, 4, 8)),
        *(DType(f"U{8 * size}", size, Order.UNSIGNED) for size in (1, 2, 4, 8)),
        DType("BOOL", 1, Order.UNSIGNED),
        DType("F8_E8M0", 1, Order.UNSIGNED),
        DType("F4", 1, Order.UNSIGNED, elements_per_lane=2),
    ]


DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in (*_floats(), *_integers())}


def dtype_named(name: str) -> DType:
    """The type called `name`; raises `Unsupported` for one that this release does not know."""
    try:
        return DTYPES[name]
    except KeyError:
        raise Unsupported(f"dtype {name!r} is not known", remedy=f"known: {', '.join(DTYPES)}") from None
