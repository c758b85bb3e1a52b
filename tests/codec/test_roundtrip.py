"""Whatever the bits: what goes in comes out, and the sums agree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec.chunks import ALL, changed, lane_type, noise, pairs, special, steps
from weightsync import codec
from weightsync.codec import Changes, Codec
from weightsync.errors import Corrupt, Invalid
from weightsync.format.dtypes import DTYPES
from weightsync.format.sums import tensor_sum


def rebuilt(dtype, frame, old):
    """The chunk that `frame` makes of `old`, by the calls a subscriber makes."""
    found = codec.decode(dtype, frame, old, len(old))
    if not isinstance(found, Changes):
        return found.view(lane_type(dtype))
    assert (found.positions.dtype, found.values.dtype) == (np.uint32, old.dtype)
    assert (np.diff(found.positions.astype(np.int64)) > 0).all()
    target = old.copy()
    codec.scatter(target, found.positions, found.values)
    return target


@settings(max_examples=300)
@given(pairs(), st.sampled_from([None, 1, 2, 5, 16]), st.integers(0, 2**40))
def test_delta(pair, classes, first_lane):
    dtype, old, new = pair
    before = old.copy()
    encoded = codec.encode_delta(dtype, old, new, first_lane=first_lane, classes=classes)
    assert encoded.changed == np.count_nonzero(old != new)
    assert encoded.sum_delta == (tensor_sum(new, first_lane) - tensor_sum(old, first_lane)) % 2**64
    assert (encoded.frame == b"") == (encoded.changed == 0)
    if encoded.frame:
        assert len(encoded.frame) <= old.nbytes * 1.01 + 24
        assert rebuilt(dtype, encoded.frame, old).tobytes() == new.tobytes()
        assert old.tobytes() == before.tobytes()


@given(pairs())
def test_blind_frames_need_no_base(pair):
    dtype, old, new = pair
    frame = codec.encode_delta(dtype, old, new, classes=1).frame
    if not frame:
        return
    positions, differences = codec.decode_differences(dtype, frame, len(old))
    assert positions.tolist() == np.flatnonzero(old != new).tolist()
    assert differences.all()
    other = codec.decode_differences(dtype, codec.encode_delta(dtype, new, old, classes=1).frame, len(old))
    assert other[0].tolist() == positions.tolist()
    assert not (other[1] + differences).any()  # undoing negates


@given(pairs())
def test_snapshot(pair):
    dtype, _, new = pair
    encoded = codec.encode_snapshot(dtype, new, first_lane=9)
    assert encoded[1:] == (len(new), tensor_sum(new, 9))
    assert len(encoded.frame) <= new.nbytes * 1.01 + 2
    assert codec.decode(dtype, encoded.frame, None, len(new)).tobytes() == new.tobytes()


@pytest.mark.parametrize("dtype", ALL, ids=lambda dtype: dtype.name)
def test_every_special_value_becomes_every_other(dtype):
    values = np.array(special(dtype), lane_type(dtype))
    old, new = (np.repeat(values, 400), np.repeat(np.roll(values, 1), 400))
    for density in (0.05, 0.15, 1):
        target = changed(old, density, lambda _: new[: len(_)], np.random.default_rng(0))
        frame = codec.encode_delta(dtype, old, target).frame
        assert rebuilt(dtype, frame, old).tobytes() == target.tobytes()


@pytest.mark.parametrize("dtype", ALL, ids=lambda dtype: dtype.name)
def test_large_chunk(dtype, transforms):
    """Many tiles, an odd end, and every form: class-gap of one and of many classes, dense, raw."""
    rng = np.random.default_rng(5)
    old = noise(dtype, 20_011, rng)
    for density, codecs in ((0.02, {Codec.CLASS_GAP}), (0.2, {Codec.CLASS_GAP, Codec.DENSE}), (1, {Codec.DENSE})):
        new = changed(old, density, lambda lanes: steps(dtype, lanes, rng), rng)
        frame = codec.encode_delta(dtype, old, new).frame
        assert frame[0] in codecs
        assert rebuilt(dtype, frame, old).tobytes() == new.tobytes()
    assert codec.encode_delta(dtype, old, noise(dtype, len(old), rng)).frame[0] == Codec.RAW


def test_one_changed_lane_is_cheap():
    for dtype in ALL:
        old = np.zeros(64, lane_type(dtype))
        new = old.copy()
        new[40] = 1
        assert len(codec.encode_delta(dtype, old, new).frame) <= 7


def test_any_buffer_will_do():
    dtype = DTYPES["BF16"]
    old = bytes(range(200))
    new = bytearray(old)
    new[7] ^= 1
    shifted = memoryview(b"x" + old)[1:]  # not aligned
    frame = codec.encode_delta(dtype, shifted, memoryview(new)).frame
    target = bytearray(old)
    codec.scatter(memoryview(target), *codec.decode(dtype, memoryview(frame), old, 100))
    assert target == new


def test_gather_and_scatter_check_before_they_write(transforms):
    target = np.arange(10, dtype="<u2")
    where = np.array([1, 10], np.uint32)
    with pytest.raises(Invalid):
        codec.scatter(target, where, np.array([7, 7], "<u2"))
    with pytest.raises(Invalid):
        codec.gather(target, where, 2)
    assert target.tolist() == list(range(10))
    assert codec.gather(target, np.array([3, 9], np.uint32), 2).tolist() == [3, 9]


def test_changes_sum_is_what_the_sum_gains(transforms):
    rng = np.random.default_rng(3)
    for dtype in ALL:
        old, new = noise(dtype, 500, rng), noise(dtype, 500, rng)
        where = np.flatnonzero(old != new).astype(np.uint32)
        gain = codec.changes_sum(where, old[where], new[where], 123)
        assert (codec.chunk_sum(dtype, old, 123) + gain) % 2**64 == codec.chunk_sum(dtype, new, 123) == tensor_sum(new, 123)


def test_wrong_calls():
    dtype = DTYPES["BF16"]
    with pytest.raises(Invalid):
        codec.encode_delta(dtype, b"1234", b"12")
    with pytest.raises(Invalid):
        codec.encode_delta(dtype, b"123", b"123")
    with pytest.raises(Invalid):
        codec.encode_delta(dtype, b"12", b"34", classes=17)
    with pytest.raises(Invalid, match="contiguous"):
        codec.encode_snapshot(dtype, np.zeros(8, "<u2")[::2])
    with pytest.raises(Invalid):
        codec.decode(dtype, b"\x01ab", b"1234", 1)
    with pytest.raises(Invalid):
        codec.decode(dtype, b"\x02\x00\x01\x00\x01", None, 4)
    with pytest.raises(Invalid):
        codec.decode(dtype, b"\x01", None, 1 << 25)
    with pytest.raises(Corrupt):
        codec.decode_differences(dtype, b"\x01ab", 1)
