"""Frames made to harm: refused with `Corrupt`, or decoded within bounds; the base is never written."""

import numpy as np
import pytest
import zstandard

from tests.codec.chunks import ALL, changed, lane_type, near_one_exponent, steps
from weightsync import codec
from weightsync.codec import Changes, Codec
from weightsync.errors import Corrupt
from weightsync.format.dtypes import DTYPES

BF16 = DTYPES["BF16"]
BOUNDARY = [2**k + d for k in (7, 8, 15, 16, 24, 31, 32, 63, 64) for d in (-1, 0, 1)]


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def refused(dtype, frame, lanes):
    base = np.arange(lanes, dtype=lane_type(dtype))
    before = base.tobytes()
    with pytest.raises(Corrupt):
        codec.decode(dtype, frame, base, lanes)
    assert base.tobytes() == before


def small_frames(dtype):
    rng = np.random.default_rng(8)
    for lanes, density in ((50, 0.05), (300, 0.1), (300, 0.9)):
        old = near_one_exponent(dtype, lanes, rng)
        new = changed(old, density, lambda part: steps(dtype, part, rng), rng)
        for classes in (1, 4, 16):
            yield old, codec.encode_delta(dtype, old, new, classes=classes).frame
        yield old, codec.encode_snapshot(dtype, np.zeros(lanes, lane_type(dtype))).frame


def bounded(dtype, frame, old):
    """Decodes what may be damaged: within bounds or refused."""
    before = old.tobytes()
    try:
        found = codec.decode(dtype, frame, old, len(old))
    except Corrupt:
        return
    finally:
        assert old.tobytes() == before
    if isinstance(found, Changes):
        assert len(found.positions) == len(found.values)
        assert (np.diff(found.positions.astype(np.int64)) > 0).all()
        assert len(found.positions) == 0 or found.positions[-1] < len(old)
        assert (found.values != old[found.positions]).all()
    else:
        assert len(found) == old.nbytes


@pytest.mark.parametrize("dtype", ALL, ids=lambda dtype: dtype.name)
def test_every_bit_flip(dtype):
    for old, frame in small_frames(dtype):
        for bit in range(8 * min(len(frame), 120)):
            damaged = bytearray(frame)
            damaged[bit // 8] ^= 1 << bit % 8
            bounded(dtype, damaged, old)


@pytest.mark.parametrize("name", ["BF16", "F8_E4M3", "F64", "I32"])
def test_every_truncation_and_extension(name):
    dtype = DTYPES[name]
    for old, frame in small_frames(dtype):
        for end in range(len(frame)):
            with pytest.raises(Corrupt):
                codec.decode(dtype, frame[:end], old, len(old))
        for extra in (b"\0", b"\xff", frame):
            with pytest.raises(Corrupt):
                codec.decode(dtype, frame + extra, old, len(old))


@pytest.mark.parametrize("codec_id", [0, 5, 99, 255])
def test_unknown_codecs(codec_id):
    refused(BF16, bytes([codec_id]) + bytes(20), 8)


@pytest.mark.parametrize("number", BOUNDARY)
def test_boundary_numbers(transforms, number):
    """As a count of changes, of exceptions, of unchanged members, as first exponent, as a length."""
    field = varint(number)
    for dtype in (BF16, DTYPES["F64"], DTYPES["I8"]):
        refused(dtype, b"\x02\x00" + field + b"\x00" + bytes(8), 100)
        refused(dtype, b"\x02\x00\x01\x20" + field + b"\x00\x00" + bytes(8), 100)
        refused(dtype, b"\x02\x00\x01\x80" + field + bytes(8), 100)
        refused(dtype, b"\x02\x0f" + field + bytes(40), 100)
        refused(dtype, b"\x04\x01" + field + bytes(40), 100)
        refused(dtype, b"\x03" + field + bytes(40), 100)


HOSTILE = {
    "empty": b"",
    "only an id": b"\x02",
    "no changes": b"\x02\x00\x00",
    "seventeen classes": b"\x02\x10\x00" + bytes(20),
    "reserved bits": b"\x02\x80\x01\x00\x01",
    "classes beyond the exponents": b"\x02\x0f\xf1\x01" + b"\x01\x00" + bytes(15) + b"\x01",
    "gap parameter 25": b"\x02\x00\x01\x19" + bytes(8),
    "unknown magnitude mode": b"\x02\x00\x01\x60\x01",
    "magnitude parameter as wide as the lane": b"\x02\x00\x01\x40\x10" + b"\x01" * 6,
    "exception parameter 25": b"\x02\x00\x01\x20\x01\x19\x00" + b"\x01" * 8,
    "no exceptions": b"\x02\x00\x01\x20\x00\x00\x00\x01",
    "more exceptions than changes": b"\x02\x00\x01\x20\x02\x00\x00\x0f",
    "overlong varint": b"\x02\x00\x81\x00\x00\x01",
    "endless varint": b"\x02\x00" + b"\x80" * 12,
    "33-bit varint": b"\x02\x00\xff\xff\xff\xff\x1f\x00\x01",
    "one long unary run": b"\x02\x00\x01\x00" + bytes(14) + b"\x80",
    "a huge quotient": b"\x02\x00\x01\x18" + bytes(3) + b"\x00\x00\x80",
    "magnitude quotient beyond the escape": b"\x02\x00\x01\x40\x00" + b"\x01\x00\x00\x00\x08",
    "an escape that needs none": b"\x02\x00\x01\x40\x00" + (1 | 1 << 26 | 5 << 27).to_bytes(6, "little"),
    "magnitude beyond the lane": b"\x02\x00\x01\x40\x00" + (1 | 1 << 26 | 0x8000 << 27).to_bytes(6, "little"),
    "padding that is not zero": b"\x02\x00\x01\x00\x81",
    "a byte too many": b"\x02\x00\x01\x00\x01\x00",
    "blind position beyond the end": b"\x02\x00\x01\x05" + (31 | 1 << 8).to_bytes(2, "little"),
    "inverted beyond the end": b"\x02\x00\x01\x80\x20\x01",
    "raw, too short": b"\x01" + bytes(15),
    "raw, too long": b"\x01" + bytes(17),
    "snapshot without compressed planes": b"\x04\x00" + bytes(16),
    "snapshot with a third plane": b"\x04\x04\x08" + bytes(24),
    "lengths that do not add up": b"\x04\x01\x09" + bytes(16),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_crafted(transforms, what):
    refused(BF16, HOSTILE[what], 8)


def test_the_crafted_frames_are_nearly_right(transforms):
    """One change each that would be accepted: the frames above fail for the reason they name."""
    for frame, position, step in (
        (b"\x02\x00\x01\x00\x01", 0, 1),
        (b"\x02\x00\x01\x00\x03", 0, -1),
        (b"\x02\x00\x01\x00\x10", 4, 1),
        (b"\x02\x00\x01\x80\x02\x03", 2, 1),  # two unchanged members, each after no changed one
        (b"\x02\x00\x01\x40\x00" + (1 | 1 << 26 | 24 << 27).to_bytes(6, "little"), 0, 25),
    ):
        positions, differences = codec.decode_differences(BF16, frame, 8)
        assert (positions.tolist(), differences.tolist()) == ([position], [step % 2**16])


def zstd_plane(data, **parameters):
    return zstandard.ZstdCompressor(**parameters).compress(data)


def snapshot_of(plane, lanes=1000):
    return b"\x04\x01" + varint(len(plane)) + plane + bytes(lanes)


def test_zstd_bombs():
    """A plane must announce exactly its size, in one frame, with a small window, and be followed by nothing."""
    lanes = 1000
    good = zstd_plane(bytes(lanes))
    assert codec.decode(BF16, snapshot_of(good), None, lanes).tobytes() == bytes(2 * lanes)
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(lanes))
    forged = bytearray(zstd_plane(bytes(2**20)))
    bombs = {
        "a gigabyte": zstd_plane(bytes(1 << 26)),
        "one byte more": zstd_plane(bytes(lanes + 1)),
        "one byte less": zstd_plane(bytes(lanes - 1)),
        "no size": streamed,
        "two frames": zstd_plane(bytes(lanes // 2)) * 2,
        "a second frame": good + good,
        "garbage behind": good + b"\0",
        "skippable frame": b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + good,
        "no zstd": b"x" * 30,
        "cut short": good[:-3],
        "a lying header": bytes(forged).replace((2**20).to_bytes(4, "little"), lanes.to_bytes(4, "little")),
        "empty": b"",
    }
    assert bombs["a lying header"] != bytes(forged)
    for plane in bombs.values():
        refused(BF16, snapshot_of(plane), lanes)


def test_wide_zstd_window_is_refused():
    """Single-segment frames have no window, so the header is written by hand: 16 MiB window, size 1000, one raw block."""
    lanes = 1000
    header = b"\x28\xb5\x2f\xfd" + bytes([0b01_0_0_0_0_00, (24 - 10) << 3]) + (lanes - 256).to_bytes(2, "little")
    block = (1 | lanes << 3).to_bytes(3, "little") + bytes(lanes)
    narrow = header[:5] + bytes([(20 - 10) << 3]) + header[6:]
    # A raw block does not pay, but nothing forbids it: the narrow twin is read.
    assert codec.decode(BF16, snapshot_of(narrow + block), None, lanes).tobytes() == bytes(2 * lanes)
    refused(BF16, snapshot_of(header + block), lanes)


def test_dense_padding_must_be_zero():
    old, new = np.zeros(301, "<u2"), np.full(301, 1, "<u2")
    frame = codec.encode_delta(BF16, old, new, classes=1).frame
    assert frame[0] == Codec.DENSE
    planes = bytearray(151 * 4)
    planes[150] = 0x10
    refused(BF16, b"\x03\x00" + bytes(planes), 301)
    planes[150] = 0x02
    assert codec.decode(BF16, b"\x03\x00" + bytes(planes), old, 301)[600] == 1
