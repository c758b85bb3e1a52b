"""The table of tensors: order, chunks, and everything that it refuses."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync.errors import Corrupt, Invalid, Unsupported, WeightsyncError
from weightsync.format import canonical
from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import ALIGNMENT, Layout, Tensor, describe_difference, make_layout

BF16, U8, F4 = DTYPES["BF16"], DTYPES["U8"], DTYPES["F4"]
SMALL = make_layout([Tensor("b", BF16, (3, 700)), Tensor("a", U8, ()), Tensor("e", BF16, (0, 2))], [("t", "b")], chunk_lanes=1024)

tensors = st.lists(
    st.builds(
        Tensor,
        st.text("abcXYZ.019_-é", min_size=1, max_size=6).filter(lambda name: name.isprintable()),
        st.sampled_from([d for d in DTYPES.values() if d is not F4]),
        st.lists(st.integers(0, 60), max_size=3).map(tuple),
    ),
    max_size=6,
    unique_by=lambda tensor: tensor.name,
)


@given(tensors, st.sampled_from([1024, 4096]))
def test_chunks_cover_every_lane_once(stored, chunk_lanes):
    layout = make_layout(stored, chunk_lanes=chunk_lanes)
    assert [t.name for t in layout.tensors] == sorted(t.name for t in stored)
    seen = dict.fromkeys(range(len(layout.tensors)), 0)
    end = 0
    for number, chunk in enumerate(layout.chunks):
        tensor = layout.tensors[chunk.tensor]
        assert chunk.number == number
        assert 0 < chunk.lanes <= chunk_lanes
        assert chunk.start_lane == seen[chunk.tensor]
        assert chunk.nbytes == chunk.lanes * tensor.dtype.lane_bytes
        assert chunk.offset == layout.offsets[chunk.tensor] + chunk.start_lane * tensor.dtype.lane_bytes >= end
        assert layout.first_chunks[chunk.tensor] <= number < layout.first_chunks[chunk.tensor + 1]
        seen[chunk.tensor] += chunk.lanes
        end = chunk.offset + chunk.nbytes
    assert list(seen.values()) == [t.lanes for t in layout.tensors]
    assert layout.first_chunks[-1] == len(layout.chunks)
    assert all(offset % ALIGNMENT == 0 for offset in layout.offsets)
    assert end <= layout.image_bytes


@given(tensors)
def test_bytes_read_back(stored):
    layout = make_layout(stored, [("alias of it", stored[0].name)] if stored else [])
    again = Layout.parse(layout.to_bytes())
    assert again == layout
    assert again.digest == layout.digest


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (([Tensor("a", U8, (1,)), Tensor("a", BF16, (1,))],), "'a' stands twice"),
        (([Tensor("a", U8, (1,))], [("a", "a")]), "'a' is a tensor"),
        (([Tensor("a", U8, (1,))], [("b", "c")]), "'c', which is not a stored tensor"),
        (([Tensor("a", U8, (1,))], [("b", "a"), ("b", "a")]), "twice"),
        (([Tensor("a", U8, (1,))], [("b", "a"), ("c", "b")]), "'b', which is not a stored tensor"),
        (([Tensor("a", F4, (3,))],), "whole bytes"),
        (([Tensor("a", U8, (1,) * 17)],), "17 dimensions"),
        (([Tensor("a", U8, (-1,))],), "impossible shape"),
        (([Tensor("a", U8, (2**50, 2**50))],), "impossible shape"),
        (([Tensor("a", U8, (2**47,))],), "beyond the limit"),
        (([Tensor("a", U8, (2**46,))],), "chunks"),
        (([Tensor("a\0", U8, (1,))],), "do not print"),
        (([Tensor("", U8, (1,))],), "empty"),
    ],
)
def test_refused(arguments, word):
    with pytest.raises(Invalid, match=word):
        make_layout(*arguments)


def test_chunk_size_and_leaf_are_bounded():
    for chunk_lanes in (0, 1023, (1 << 24) + 1):
        with pytest.raises(Invalid, match="lanes"):
            make_layout([], chunk_lanes=chunk_lanes)
    with pytest.raises(Invalid, match="md5"):
        make_layout([], leaf="md5")


def change(**fields):
    return canonical.to_bytes({**json.loads(SMALL.to_bytes()), **fields})


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (change(tensors=[["b", "BF16", [3]], ["a", "U8", []]]), Corrupt),  # out of order
        (change(tensors=[["b", "BF16", [3, True]]]), Corrupt),
        (change(tensors=[["b", "BF16"]]), Corrupt),
        (change(tensors=[{"b": 1}]), Corrupt),
        (change(tensors="b"), Corrupt),
        (change(tensors=[["b", "Q4", [3]]], aliases=[]), Unsupported),
        (change(aliases=[["t"]]), Corrupt),
        (change(aliases=[["t", "nobody"]]), Corrupt),
        (change(chunk_lanes=7), Corrupt),
        (change(chunk_lanes=0), Corrupt),
        (change(leaf="md5"), Corrupt),
        (change(format=2), Unsupported),
        (change(kind="manifest"), Unsupported),
        (change(more=1), Unsupported),
        (SMALL.to_bytes() + b" ", Corrupt),
        (SMALL.to_bytes()[:-1], Corrupt),
        (b"", Corrupt),
    ],
)
def test_stored_bytes_are_read_strictly(data, error):
    with pytest.raises(error):
        Layout.parse(data)


def test_every_flipped_bit_is_refused_or_another_layout():
    data = SMALL.to_bytes()
    for position in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        with contextlib.suppress(WeightsyncError):
            assert Layout.parse(bytes(flipped)).digest != SMALL.digest


def test_differences_in_words():
    other = make_layout([Tensor("b", U8, (3, 700)), Tensor("c", U8, ())], chunk_lanes=1024)
    assert describe_difference(SMALL, SMALL) == ""
    assert describe_difference(SMALL, other) == "1 added (first 'c'), 2 removed (first 'a'), 1 retyped (first 'b')"
    assert "chunk size" in describe_difference(SMALL, make_layout(SMALL.tensors, SMALL.aliases, chunk_lanes=2048))


def test_an_alias_finds_its_tensor():
    assert SMALL.tensors[SMALL.index["t"]].name == "b"
