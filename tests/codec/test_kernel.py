"""The reference defines the bytes: every level of the kernel writes the same, and reads the same from good and from bad frames."""

from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.codec.chunks import ALL, changed, heavy_tail, near_one_exponent, noise, pairs, steps, trained, weights
from weightsync.codec.reference import transforms as reference
from weightsync.format.dtypes import DTYPES

per_level = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
CLASSES = (0, 1, 2, 3, 8, 11, 16)


def by_reference(dtype, old, new, classes):
    frame, *totals = reference.encode_classgap(dtype, old, new, 77, classes)
    return (frame, *totals), reference.decode_classgap(dtype, frame, old) if frame else ()


def same(kernel, dtype, old, new, classes, *, expected=None):
    encoded, decoded = expected or by_reference(dtype, old, new, classes)
    frame, *totals = kernel.encode_classgap(dtype, old, new, 77, classes)
    assert (frame, *totals) == encoded
    if frame:
        for mine, theirs in zip(kernel.decode_classgap(dtype, frame, old), decoded, strict=True):
            assert (mine.dtype, mine.tobytes()) == (theirs.dtype, theirs.tobytes())
    return frame


@per_level
@given(pairs(), st.sampled_from(CLASSES))
def test_small_chunks(kernel, pair, classes):
    same(kernel, *pair, classes)


@cache  # the slow reference works once, for all levels
def many_tiles(dtype):
    rng, found = np.random.default_rng(11), []
    for lanes in (4096, 4097, 13_001):
        for density in (0.003, 0.02, 0.15):
            for make in (noise, near_one_exponent):
                old = make(dtype, lanes, rng)
                for change in (steps, heavy_tail):
                    new = changed(old, density, lambda part, change=change: change(dtype, part, rng), rng)
                    found += [((old, new, classes), by_reference(dtype, old, new, classes)) for classes in (0, 1, 5, 16)]
    return found


@pytest.mark.parametrize("dtype", ALL, ids=lambda dtype: dtype.name)
def test_many_tiles(kernel, dtype):
    for given_to_both, expected in many_tiles(dtype):
        same(kernel, dtype, *given_to_both, expected=expected)


def test_trained_weights(kernel):
    """Densities from nothing to nearly all within one chunk: classes that list their unchanged members."""
    rng = np.random.default_rng(2)
    old = weights(60_000, rng)
    for rate in (1e-5, 1e-4, 4e-4):
        frame = same(kernel, DTYPES["BF16"], old, trained(old, rate, rng), 0)
        assert frame


@per_level
@given(pairs())
def test_planes_and_sums(kernel, pair):
    dtype, old, new = pair
    planes, *totals = kernel.difference_planes(dtype, old, new, 3)
    expected, *expected_totals = reference.difference_planes(dtype, old, new, 3)
    assert planes.tolist() == expected.tolist()
    assert totals == expected_totals
    assert kernel.apply_difference_planes(dtype, planes, old).tobytes() == new.tobytes()
    differences = kernel.differences_of_planes(planes, len(old), dtype.lane_bytes)
    assert differences.tolist() == reference.differences_of_planes(planes, len(old), dtype.lane_bytes).tolist()
    split = kernel.split_planes(new, dtype.lane_bytes)
    assert split.tolist() == reference.split_planes(new, dtype.lane_bytes).tolist()
    assert kernel.join_planes(split, dtype.lane_bytes).tobytes() == new.tobytes()
    assert kernel.chunk_sum(new, dtype.lane_bytes, 2**63) == reference.chunk_sum(new, dtype.lane_bytes, 2**63)


def outcome(decode, *arguments):
    try:
        return [part.tolist() for part in decode(*arguments)]
    except ValueError:
        return "refused"


@per_level
@given(pairs(most=120), st.sampled_from(CLASSES), st.data())
def test_damaged_frames(kernel, pair, classes, data):
    """Both refuse, or both find the same."""
    dtype, old, new = pair
    frame = kernel.encode_classgap(dtype, old, new, 0, classes)[0]
    if not frame:
        return
    for _ in range(20):
        damaged = bytearray(frame)
        for _ in range(data.draw(st.integers(1, 3))):
            damaged[data.draw(st.integers(0, min(len(frame) - 1, 40)))] = data.draw(st.integers(0, 255))
        assert outcome(kernel.decode_classgap, dtype, damaged, old) == outcome(reference.decode_classgap, dtype, damaged, old)


@per_level
@given(st.sampled_from(ALL), st.binary(max_size=60), st.integers(1, 16), st.integers(0, 200))
def test_random_frames(kernel, dtype, body, classes, lanes):
    frame = bytes([2, classes - 1]) + body
    base = noise(dtype, lanes, np.random.default_rng(lanes))
    assert outcome(kernel.decode_classgap, dtype, frame, base) == outcome(reference.decode_classgap, dtype, frame, base)
    assert outcome(kernel.decode_differences, dtype, frame, lanes) == outcome(reference.decode_differences, dtype, frame, lanes)


def test_wrong_arguments(kernel):
    from weightsync.codec import _kernel

    good = np.zeros(4, "<u2")
    for call in (
        lambda: _kernel.encode_classgap(3, good, good, 0, 0),
        lambda: _kernel.encode_classgap(2 | 250 << 16 | 8 << 24, good, good, 0, 0),
        lambda: _kernel.encode_classgap(2, good, good[:3], 0, 0),
        lambda: _kernel.encode_classgap(2, good, good, 0, 17),
        lambda: _kernel.encode_classgap(2, b"123", b"123", 0, 0),
        lambda: _kernel.apply_difference_planes(2, np.zeros(7, np.uint8), good),
        lambda: _kernel.differences_of_planes(np.zeros(7, np.uint8), 4, 2),
        lambda: _kernel.split_planes(b"123", 3),
        lambda: _kernel.gather(good, np.zeros(1, np.uint64), 2),
        lambda: _kernel.scatter(good, np.zeros(2, np.uint32), good[:1]),
        lambda: _kernel.changes_sum(np.zeros(2, np.uint32), good[:2], good[:1], 0),
    ):
        with pytest.raises(ValueError, match=r"[a-z]"):
            call()
    with pytest.raises((BufferError, ValueError)):
        _kernel.encode_classgap(2, good[::2], good[::2], 0, 0)
    with pytest.raises((BufferError, ValueError)):
        _kernel.scatter(bytes(8), np.zeros(1, np.uint32), good[:1])
