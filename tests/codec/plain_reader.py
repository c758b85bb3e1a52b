"""Reads frames by `proto/FORMAT.md` alone, bit by bit; imports nothing of weightsync. Slow, and checks only what it needs."""

import zstandard

# name: (bits of a lane, float, lowest exponent bit, exponent bits)
TYPES = {
    "BF16": (16, True, 7, 8), "F16": (16, True, 10, 5), "F32": (32, True, 23, 8), "F64": (64, True, 52, 11),
    "F8_E4M3": (8, True, 3, 4), "F8_E5M2": (8, True, 2, 5), "C64": (32, True, 23, 8), "C128": (64, True, 52, 11),
    **{f"{sign}{width}": (width, False, 0, 0) for sign in "IU" for width in (8, 16, 32, 64)},
    "BOOL": (8, False, 0, 0), "F8_E8M0": (8, False, 0, 0), "F4": (8, False, 0, 0),
}  # fmt: skip


def read_frame(dtype, frame, base, lanes):
    """The new chunk's bytes. `base`: the old chunk's bytes, or None for raw and snapshot frames."""
    width, is_float, shift, exponent_bits = TYPES[dtype]
    size = width // 8
    if frame[0] == 1:
        return frame[1:]
    if frame[0] == 4:
        planes = _planes(frame, size, lanes)
        return bytes(planes[i % size][i // size] for i in range(lanes * size))
    old = [int.from_bytes(base[i : i + size], "little") for i in range(0, len(base), size)]
    if frame[0] == 3:
        differences = dict(enumerate(_dense(frame, width, lanes)))
    elif frame[0] == 2:
        differences = _class_gap(frame, old, width, shift, exponent_bits)
    else:
        raise ValueError("unknown codec")
    for i, difference in differences.items():
        old[i] = _key((_key(old[i], width, is_float) + difference) % 2**width, width, is_float)
    return b"".join(value.to_bytes(size, "little") for value in old)


def _key(x, width, is_float):
    return x ^ (2 ** (width - 1) - 1) if is_float and x >> (width - 1) else x


class _Input:
    def __init__(self, data):
        self.data, self.at = data, 0

    def byte(self):
        self.at += 1
        return self.data[self.at - 1]

    def varint(self):
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7


def _planes(frame, count, size):
    head = _Input(frame)
    head.byte()
    mask = head.varint()
    lengths = [head.varint() if mask >> p & 1 else size for p in range(count)]
    planes, at = [], head.at
    for p, length in enumerate(lengths):
        part = frame[at : at + length]
        planes.append(zstandard.ZstdDecompressor().decompress(part, max_output_size=size) if mask >> p & 1 else part)
        at += length
    return planes


def _dense(frame, width, lanes):
    planes = _planes(frame, width // 4, (lanes + 1) // 2)
    for i in range(lanes):
        z = sum((plane[i // 2] >> 4 * (i % 2) & 15) << 4 * p for p, plane in enumerate(planes))
        yield z // 2 if z % 2 == 0 else 2**width - (z + 1) // 2


class _Bits:
    def __init__(self, data, width):
        self.bits, self.at, self.width = "".join(f"{byte:08b}"[::-1] for byte in data), 0, width

    def number(self, count):
        self.at += count
        return int("0" + self.bits[self.at - count : self.at][::-1], 2)

    def unary(self):
        start, self.at = self.at, self.bits.index("1", self.at) + 1
        return self.at - 1 - start

    def rice(self, count, k):
        low = [self.number(k) for _ in range(count)]
        return [part + (self.unary() << k) for part in low]

    def ranks(self, count, k):
        found = []
        for gap in self.rice(count, k):
            found.append(gap + (found[-1] + 1 if found else 0))
        return found

    def long(self, count, k):
        return [self.number(self.width) if value >> k == 24 else value for value in self.rice(count, k)]


def _class_gap(frame, old, width, shift, exponent_bits):
    head = _Input(frame)
    head.byte()
    classes = head.byte() + 1
    first = head.varint() if classes > 1 else 0
    headers = [_class_header(head) for _ in range(classes)]
    bits = _Bits(frame[head.at :], width)
    listed = [_class_changes(bits, header) for header in headers]
    found, members = {}, [0] * classes
    for i, lane in enumerate(old):
        exponent = lane >> shift & (2**exponent_bits - 1)
        c = min(max(exponent - first, 0), classes - 1)
        if members[c] in listed[c]:
            found[i] = listed[c][members[c]]
        members[c] += 1
    return found


def _class_changes(bits, header):
    """Difference by rank."""
    count, k, mode, unchanged, exceptions, kx, km = header
    if unchanged is None:
        places = bits.ranks(count, k)
    else:
        others = set(bits.ranks(unchanged, k))
        places = [rank for rank in range(count + unchanged) if rank not in others]
    signs = [bits.number(1) for _ in range(count)]
    sizes = [1] * count
    if mode == 1:
        for index, extra in zip(bits.ranks(exceptions, kx), bits.long(exceptions, km), strict=True):
            sizes[index] = extra + 2
    elif mode == 2:
        sizes = [extra + 1 for extra in bits.long(count, km)]
    return {rank: -size if sign else size for rank, size, sign in zip(places, sizes, signs, strict=True)}


def _class_header(head):
    count = head.varint()
    if not count:
        return 0, 0, 0, None, 0, 0, 0
    byte = head.byte()
    k, mode = byte & 31, byte >> 5 & 3
    unchanged = head.varint() if byte >> 7 else None
    exceptions, kx = (head.varint(), head.byte()) if mode == 1 else (0, 0)
    km = head.byte() if mode else 0
    return count, k, mode, unchanged, exceptions, kx, km
