"""Bit strings as arrays of 0 and 1, least significant bit first; they are joined and packed at the end."""

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint8]  # one element per bit
U64 = NDArray[np.uint64]


class Malformed(ValueError):
    """A frame breaks a rule of the format; the public API turns this into `Corrupt`."""


def fixed(values: U64, width: int) -> Bits:
    """Each of `values` in `width` bits."""
    shifts = np.arange(width, dtype=np.uint64)
    return ((values[:, None] >> shifts) & np.uint64(1)).astype(np.uint8).reshape(-1)


def unary(quotients: U64) -> Bits:
    """Each of `quotients` as that many zeros and a one."""
    ends = np.cumsum(quotients.astype(np.int64) + 1)
    bits = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    bits[ends - 1] = 1
    return bits


def pack(parts: list[Bits]) -> bytes:
    """Bytes of the joined `parts`; the last byte is filled with zeros."""
    return np.packbits(np.concatenate(parts), bitorder="little").tobytes() if parts else b""


class BitReader:
    """Reads what `fixed` and `unary` wrote; raises `Malformed` at the end of the data."""

    def __init__(self, data: bytes) -> None:
        self._bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        self._at = 0

    def fixed(self, count: int, width: int) -> U64:
        """`count` values of `width` bits."""
        taken = self._take(count * width).reshape(count, width).astype(np.uint64)
        return np.asarray((taken << np.arange(width, dtype=np.uint64)).sum(axis=1, dtype=np.uint64))

    def unary(self, count: int) -> U64:
        """`count` unary codes."""
        ends = np.flatnonzero(self._bits[self._at :])[:count]
        if len(ends) < count:
            raise Malformed("the bit stream ends inside a unary code")
        self._at += int(ends[-1]) + 1 if count else 0
        return (np.diff(ends, prepend=-1) - 1).astype(np.uint64)

    def finish(self) -> None:
        """Checks that only the zero padding of the last byte is left."""
        left = self._bits[self._at :]
        if len(left) >= 8 or left.any():
            raise Malformed("bytes follow the end of the bit stream")

    def _take(self, count: int) -> Bits:
        if count > len(self._bits) - self._at:
            raise Malformed("the bit stream ends early")
        self._at += count
        return self._bits[self._at - count : self._at]
