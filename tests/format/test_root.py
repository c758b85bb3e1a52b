"""Roots tell any two states apart; sums add up over any partition; tables and shards are read strictly."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync.errors import Corrupt, Invalid, WeightsyncError
from weightsync.format.digests import DigestTable
from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import Layout, Tensor, make_layout
from weightsync.format.root import leaf_digest, root_digest
from weightsync.format.shard import pack_shard, parse_shard
from weightsync.format.sums import tensor_sum, weights

State = dict[str, tuple[str, tuple[int, ...], bytes]]


def layout_of(state: State, aliases=(), **options) -> Layout:
    return make_layout(
        [Tensor(name, DTYPES[dtype], shape) for name, (dtype, shape, _) in state.items()], aliases, chunk_lanes=1024, **options
    )


def leaves_of(layout: Layout, state: State) -> bytes:
    leaves = []
    for chunk in layout.chunks:
        tensor = layout.tensors[chunk.tensor]
        start = chunk.start_lane * tensor.dtype.lane_bytes
        leaves.append(leaf_digest(layout.leaf, state[tensor.name][2][start : start + chunk.nbytes]))
    return b"".join(leaves)


def root_of(state: State, aliases=(), **options) -> str:
    layout = layout_of(state, aliases, **options)
    return root_digest(layout, leaves_of(layout, state))


DATA = np.random.default_rng(0).bytes(6000)
BASE: State = {"a": ("BF16", (30, 100), DATA), "b": ("U8", (4,), b"abcd"), "c": ("U8", (4,), b"efgh"), "e": ("U8", (0,), b"")}


@pytest.mark.parametrize(
    "other",
    [
        {**{k: v for k, v in BASE.items() if k != "b"}, "bb": BASE["b"]},  # renamed
        {**BASE, "a": ("BF16", (100, 30), DATA)},  # reshaped
        {**BASE, "a": ("BF16", (3000,), DATA)},
        {**BASE, "a": ("BF16", (1, 30, 100), DATA)},
        {**BASE, "a": ("F16", (30, 100), DATA)},  # retyped
        {**BASE, "b": ("I8", (4,), b"abcd")},
        {**BASE, "e": ("I8", (0,), b"")},  # even where there are no bytes
        {**BASE, "e": ("U8", (0, 5), b"")},
        {k: v for k, v in BASE.items() if k != "e"},
        {**BASE, "b": BASE["c"], "c": BASE["b"]},  # exchanged
        {**BASE, "a": ("BF16", (30, 100), DATA[2048:4096] + DATA[:2048] + DATA[4096:])},  # chunks exchanged
        {**BASE, "a": ("BF16", (30, 100), DATA[::-1])},
        {**BASE, "b": ("U8", (2,), b"ab"), "c": ("U8", (6,), b"cdefgh")},  # the border moved
        {**BASE, "b": ("U8", (8,), b"abcdefgh"), "c": ("U8", (0,), b"")},
    ],
)
def test_any_other_state_has_another_root(other):
    assert root_of(other) != root_of(BASE)


def test_aliases_chunk_size_and_leaf_count():
    roots = {
        root_of(BASE),
        root_of(BASE, [("t", "a")]),
        root_of(BASE, [("t", "b")]),
        root_of(BASE, [("u", "b")]),
        root_of(BASE, leaf="blake3"),
    }
    assert len(roots) == 5
    one = {"a": ("U8", (4,), b"abcd")}
    layout = make_layout([Tensor("a", DTYPES["U8"], (4,))], chunk_lanes=2048)
    assert root_digest(layout, leaves_of(layout, one)) != root_of(one)


@st.composite
def states(draw):
    names = draw(st.lists(st.text("ab", min_size=1, max_size=3), max_size=3, unique=True))
    state = {}
    for name in names:
        dtype = draw(st.sampled_from(["U8", "I8", "BF16", "F16"]))
        shape = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
        size = Tensor(name, DTYPES[dtype], shape).nbytes
        state[name] = (dtype, shape, draw(st.binary(min_size=size, max_size=size)))
    return state


@given(states(), states())
def test_roots_are_equal_only_for_equal_states(one, other):
    assert (root_of(one) == root_of(other)) == (one == other)


def test_leaves_must_be_all_there():
    layout = layout_of(BASE)
    with pytest.raises(Invalid, match="bytes of leaves"):
        root_digest(layout, leaves_of(layout, BASE)[:-16])


@given(st.binary(max_size=64).filter(lambda data: len(data) % 8 == 0), st.sampled_from([1, 2, 4, 8]), st.integers(0, 2**40), st.data())
def test_sums_add_up_over_partitions_and_follow_changes(data, size, first, choose):
    lanes = np.frombuffer(data, f"<u{size}")
    cut = choose.draw(st.integers(0, len(lanes)))
    whole = tensor_sum(lanes, first)
    assert whole == (tensor_sum(lanes[:cut], first) + tensor_sum(lanes[cut:], first + cut)) % 2**64
    if len(lanes):
        at = choose.draw(st.integers(0, len(lanes) - 1))
        changed = lanes.copy()
        changed[at] ^= 1
        gain = (int(changed[at]) - int(lanes[at])) * int(weights(np.array([first + at], np.uint64))[0])
        assert tensor_sum(changed, first) == (whole + gain) % 2**64 != whole


def test_sums_by_plain_integers():
    def w(i):
        mask = 2**64 - 1
        z = (i + 1) * 0x9E3779B97F4A7C15 & mask
        z ^= z >> 32
        z = z * 0xD6E8FEB86659FD93 & mask
        z ^= z >> 32
        return z | 1

    lanes = np.arange(5, 3005, dtype=np.uint16)
    assert tensor_sum(lanes, 7) == sum(int(x) * w(i + 7) for i, x in enumerate(lanes)) % 2**64


def test_sums_tell_order():
    lanes = np.arange(1, 2000, dtype=np.uint16)
    assert tensor_sum(lanes) != tensor_sum(lanes[::-1].copy())


class TestDigests:
    layout = layout_of(BASE)
    table = DigestTable(leaves_of(layout, BASE), np.arange(4, dtype=np.uint64) << np.uint64(60))
    data = table.to_bytes(layout)
    root = root_digest(layout, table.leaves)

    def test_reads_back(self):
        found = DigestTable.parse(self.layout, self.data, self.root)
        assert found.leaves == self.table.leaves
        assert (found.sums == self.table.sums).all()
        assert found.leaf(self.layout, 1) == leaf_digest("xxh3-128", DATA[2048:4096])

    def test_blake3_leaves(self):
        layout = layout_of(BASE, leaf="blake3")
        table = DigestTable(leaves_of(layout, BASE), self.table.sums)
        assert DigestTable.parse(layout, table.to_bytes(layout), root_digest(layout, table.leaves)).leaf(layout, 0) == leaf_digest(
            "blake3", DATA[:2048]
        )
        with pytest.raises(Corrupt):
            DigestTable.parse(layout, self.data, self.root)

    def test_every_cut_and_longer(self):
        for data in (*(self.data[:n] for n in range(len(self.data))), self.data + b"\0"):
            with pytest.raises(Corrupt):
                DigestTable.parse(self.layout, data, self.root)

    def test_every_flipped_bit_of_header_and_leaves(self):
        for position in range(8 * (len(self.data) - self.table.sums.nbytes)):
            data = bytearray(self.data)
            data[position // 8] ^= 1 << position % 8
            with pytest.raises(Corrupt):
                DigestTable.parse(self.layout, bytes(data), self.root)


frame_lists = st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=200)), max_size=6, unique_by=lambda pair: pair[0]).map(sorted)


class TestShard:
    data = pack_shard([(0, b"first"), (3, b""), (4, b"x" * 200), (900, b"last")])

    @given(frame_lists)
    def test_reads_back(self, frames):
        assert [(number, bytes(frame)) for number, frame in parse_shard(pack_shard(frames), 301)] == frames

    def test_chunks_beyond_the_layout(self):
        assert len(parse_shard(self.data, 901)) == 4
        with pytest.raises(Corrupt, match="chunk 900 of 900"):
            parse_shard(self.data, 900)
        with pytest.raises(Corrupt, match="4 frames for 3 chunks"):
            parse_shard(self.data, 3)

    def test_every_cut_and_longer(self):
        for data in (*(self.data[:n] for n in range(len(self.data))), self.data + b"\0"):
            with pytest.raises(Corrupt):
                parse_shard(data, 901)

    def test_flipped_bits_give_typed_errors_or_frames_in_order(self):
        for position in range(8 * 24):
            data = bytearray(self.data)
            data[position // 8] ^= 1 << position % 8
            try:
                found = parse_shard(data, 901)
            except WeightsyncError:
                continue
            numbers = [number for number, _ in found]
            assert numbers == sorted(set(numbers))
            assert all(number < 901 for number in numbers)

    @given(st.binary(max_size=60))
    def test_noise(self, noise):
        with contextlib.suppress(WeightsyncError):
            parse_shard(b"WSSH\x01\0\0\0" + noise, 50)
