"""Unsigned LEB128 in its shortest form, at most 32 bits."""

from weightsync.codec.reference.bits import Malformed

_LONGEST = 5  # bytes


def put(value: int) -> bytes:
    """The bytes of one varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class ByteReader:
    """Reads header fields from the front of a frame; raises `Malformed`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def byte(self) -> int:
        """The next byte."""
        if self._at >= len(self._data):
            raise Malformed("the frame ends inside its header")
        self._at += 1
        return self._data[self._at - 1]

    def varint(self) -> int:
        """The next varint."""
        value = 0
        for place in range(_LONGEST):
            byte = self.byte()
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                if place and not byte:
                    raise Malformed("a varint is longer than it need be")
                if value >> 32:
                    raise Malformed("a varint exceeds 32 bits")
                return value
        raise Malformed("a varint does not end")

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._at

    def rest(self) -> bytes:
        """All that was not read."""
        return self._data[self._at :]
