"""How small frames are: against the entropy of the pair, and against raw at every density."""

import numpy as np
import pytest

from tests.codec.chunks import ALL, changed, lane_type, noise, noise_change, steps, trained, weights
from weightsync import codec
from weightsync.codec import Codec
from weightsync.codec.reference.lanes import keys
from weightsync.format.dtypes import DTYPES, Order


def entropy_bits(counts):
    counts = counts[counts > 0].astype(float)
    return float((counts * np.log2(counts.sum() / counts)).sum())


def limit_bytes(old, new):
    """Exponent-conditioned entropy of positions and key differences of a bf16 pair."""
    exponent, different = old >> 7 & 255, old != new
    difference = keys(new, Order.FLOAT) - keys(old, Order.FLOAT)
    bits = 0.0
    for e in np.unique(exponent[different]):
        members, hits = np.count_nonzero(exponent == e), (exponent == e) & different
        bits += entropy_bits(np.array([members - hits.sum(), hits.sum()]))
        bits += entropy_bits(np.unique(difference[hits], return_counts=True)[1])
    return bits / 8


@pytest.mark.parametrize(("rate", "density"), [(0.0006, 0.23), (0.00015, 0.083), (0.00002, 0.018)])
def test_near_the_limit(rate, density):
    rng = np.random.default_rng(4)
    old = weights(1 << 20, rng)
    new = trained(old, rate, rng)
    assert density * 0.9 < np.mean(old != new) < density * 1.1
    frame = codec.encode_delta(DTYPES["BF16"], old, new).frame
    limit = limit_bytes(old, new)
    assert limit < len(frame) <= 1.04 * limit + 32


@pytest.mark.parametrize("dtype", ALL, ids=lambda dtype: dtype.name)
def test_never_larger_than_raw(dtype):
    rng = np.random.default_rng(6)
    for lanes in (1, 10, 100, 3000):
        old = noise(dtype, lanes, rng)
        for density in (0, 0.001, 0.1, 0.2, 0.3, 0.4, 0.5, 0.9, 1):
            for change in (steps, noise_change):
                new = changed(old, density, lambda part, change=change: change(dtype, part, rng), rng)
                for classes in (None, 1):
                    assert len(codec.encode_delta(dtype, old, new, classes=classes).frame) <= old.nbytes * 1.01 + 4 + dtype.lane_bytes
        assert len(codec.encode_snapshot(dtype, old).frame) <= old.nbytes * 1.01 + 2


def test_snapshots_of_weights_pay():
    new = weights(1 << 16, np.random.default_rng(1))
    assert len(codec.encode_snapshot(DTYPES["BF16"], new).frame) < 0.70 * new.nbytes


def test_many_classes_beat_one():
    rng = np.random.default_rng(7)
    old = weights(1 << 18, rng)
    new = trained(old, 2e-4, rng)
    sizes = [len(codec.encode_delta(DTYPES["BF16"], old, new, classes=k).frame) for k in (1, 4, 8, 16)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.8 * sizes[0]


def test_empty_chunks():
    for dtype in ALL:
        empty = np.zeros(0, lane_type(dtype))
        assert codec.encode_delta(dtype, empty, empty) == (b"", 0, 0)
        frame = codec.encode_snapshot(dtype, empty).frame
        assert len(codec.decode(dtype, frame, None, 0)) == 0


def test_asking_for_classes_asks_for_size():
    """A fold of many versions has the time that a publisher in a hurry has not."""
    rng = np.random.default_rng(9)
    old = weights(1 << 17, rng)
    new = trained(old, 0.002, rng)
    hurried, patient = (codec.encode_delta(DTYPES["BF16"], old, new, classes=k).frame for k in (None, 16))
    assert (hurried[0], patient[0]) == (Codec.DENSE, Codec.CLASS_GAP)
    assert len(patient) < min(len(hurried), 1.06 * limit_bytes(old, new))
