"""The written format, the golden frames and the code say the same."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec.chunks import pairs, trained, weights
from tests.codec.plain_reader import TYPES, read_frame
from weightsync import codec
from weightsync.format.dtypes import DTYPES, Order

GOLDEN = json.loads((Path(__file__).parent / "golden_frames.json").read_text())


def test_types_are_those_of_the_code():
    known = {d.name: (8 * d.lane_bytes, d.order is Order.FLOAT, d.exponent_shift, d.exponent_bits) for d in DTYPES.values()}
    assert known == TYPES


@settings(max_examples=200)
@given(pairs(most=200), st.sampled_from([None, 1, 3, 16]))
def test_a_reader_written_from_the_specification(pair, classes):
    dtype, old, new = pair
    frame = codec.encode_delta(dtype, old, new, classes=classes).frame
    assert not frame or read_frame(dtype.name, frame, old.tobytes(), len(old)) == new.tobytes()
    snapshot = codec.encode_snapshot(dtype, new).frame
    assert read_frame(dtype.name, snapshot, None, len(new)) == new.tobytes()


def test_it_reads_all_modes_of_a_trained_chunk():
    rng = np.random.default_rng(12)
    old = weights(6000, rng)
    for rate in (2e-5, 4e-4):
        new = trained(old, rate, rng)
        frame = codec.encode_delta(DTYPES["BF16"], old, new, classes=16).frame
        assert read_frame("BF16", frame, old.tobytes(), len(old)) == new.tobytes()


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_golden_frames(transforms, case):
    """What was written once must stay readable, and class-gap frames must be written so again."""
    dtype, old, new, frame = DTYPES[case["dtype"]], *(bytes.fromhex(case[key]) for key in ("old", "new", "frame"))
    lanes = len(old) // dtype.lane_bytes
    found = codec.decode(dtype, frame, old, lanes)
    target = bytearray(old)
    if isinstance(found, codec.Changes):
        codec.scatter(target, *found)
        assert codec.encode_delta(dtype, old, new, classes=case["classes"]).frame == frame
    else:
        target[:] = found.tobytes()
    assert target == new
    assert read_frame(dtype.name, frame, old, lanes) == new
