"""LEB128 integers: seven bits per byte, low first, shortest form only."""

from weightsync.errors import Corrupt

_MAX_BYTES = 10


def write(value: int) -> bytes:
    """Encodes 0 <= value < 2^64."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """(value, next position); raises `Corrupt` on a cut, overlong or too large one."""
    value = 0
    for count, byte in enumerate(data[position : position + _MAX_BYTES]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if (byte == 0 and count) or value >> 64:
                break
            return value, position + count + 1
    raise Corrupt("a variable-length integer is cut, overlong or too large")
