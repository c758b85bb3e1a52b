import functools
import operator
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.publisher.checkpoints import Weights, bits, make, step
from weightsync.codec import Changes, decode
from weightsync.errors import Corrupt, Invalid
from weightsync.format.digests import DigestTable
from weightsync.format.dtypes import DTYPES
from weightsync.format.files import FileTable
from weightsync.format.layout import Tensor, make_layout
from weightsync.format.packing import pack
from weightsync.format.root import leaf_digest
from weightsync.format.shard import parse_shard
from weightsync.format.sums import tensor_sum
from weightsync.publisher.diff import Differ, groups
from weightsync.publisher.parallel import in_order


class Memory:
    """Weights as a source and as a base."""

    files, objects, notes = FileTable(), (), ()

    def __init__(self, weights: Weights) -> None:
        self.layout = make_layout((Tensor(n, DTYPES[k], s) for n, (k, s, _) in weights.items()), chunk_lanes=1024)
        self.data = bytearray(self.layout.image_bytes)
        for tensor, offset in zip(self.layout.tensors, self.layout.offsets, strict=True):
            self.data[offset : offset + tensor.nbytes] = weights[tensor.name][2]
        self.weights = weights

    def read(self, chunk, into):
        view = into[: chunk.nbytes]
        view[:] = self.data[chunk.offset : chunk.offset + chunk.nbytes]
        return view

    def chunk(self, number):
        chunk = self.layout.chunks[number]
        return memoryview(self.data)[chunk.offset : chunk.offset + chunk.nbytes]

    def table(self):
        leaves = b"".join(leaf_digest(self.layout.leaf, self.chunk(c.number)) for c in self.layout.chunks)
        sums = [tensor_sum(bits(t.dtype.name, self.weights[t.name][2])) for t in self.layout.tensors]
        return DigestTable(leaves, np.array(sums, np.uint64))


def diff(old, new, threads=2, check=lambda number, frame, leaf: None):
    differ = Differ(new, (old, old.table()) if old else None, check)
    frames = [frame for group in differ.frames(threads=threads) for frame in group]
    return frames, differ.tally


@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 16), share=st.sampled_from([0, 0.001, 0.01, 0.2, 0.5, 1]), threads=st.sampled_from([1, 2, 5]))
def test_frames_rebuild_the_new_bytes_and_the_table_is_theirs(seed, share, threads):
    old, new = Memory(make(seed)), Memory(step(make(seed), seed + 1, share))
    frames, tally = diff(old, new, threads)
    image = Memory(old.weights)
    for number, frame in frames:
        chunk = image.layout.chunks[number]
        found = decode(image.layout.tensors[chunk.tensor].dtype, frame, image.chunk(number), chunk.lanes)
        target = np.frombuffer(image.chunk(number), np.uint8)
        if isinstance(found, Changes):
            target.view(found.values.dtype)[found.positions] = found.values
        else:
            target[:] = found
    assert image.data == new.data
    assert [number for number, _ in frames] == sorted({number for number, _ in frames})
    expected, table = new.table(), tally.table()
    assert (table.leaves, table.sums.tolist()) == (expected.leaves, expected.sums.tolist())
    assert tally.changed_lanes == sum(int((bits(k, d) != bits(k, new.weights[n][2])).sum()) for n, (k, _, d) in old.weights.items())


def test_a_snapshot_is_a_diff_against_nothing():
    new = Memory(make())
    frames, tally = diff(None, new)
    assert len(frames) == len(new.layout.chunks)
    assert tally.table().sums.tolist() == new.table().sums.tolist()
    assert tally.changed_lanes == new.layout.lanes


def test_frames_do_not_depend_on_the_number_of_threads():
    old, new = Memory(make()), Memory(step(make(), 1))
    assert diff(old, new, 1)[0] == diff(old, new, 7)[0]


def test_equal_weights_make_no_frame():
    frames, tally = diff(Memory(make()), Memory(make()))
    assert (frames, tally.changed_lanes) == ([], 0)
    assert tally.table().leaves == Memory(make()).table().leaves


def test_every_frame_is_checked_with_the_leaf_of_the_new_bytes():
    old, new = Memory(make()), Memory(step(make(), 1))
    seen = {}
    frames, _ = diff(old, new, check=lambda number, frame, leaf: seen.update({number: (frame, leaf)}))
    assert seen == {number: (frame, leaf_digest("xxh3-128", new.chunk(number))) for number, frame in frames}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_failing_check_ends_the_diff_and_leaves_no_thread(threads):
    def check(number, frame, leaf):
        raise Corrupt(f"chunk {number}")

    before = threading.active_count()
    with pytest.raises(Corrupt):
        diff(Memory(make()), Memory(step(make(), 1)), threads, check)
    assert threading.active_count() == before


def test_a_base_that_rotted_in_a_chunk_that_seems_unchanged_is_noticed():
    old, new = Memory(make()), Memory(make())
    table = old.table()
    name = old.layout.tensors[old.layout.chunks[5].tensor].name
    for memory in (old, new):
        memory.data[memory.layout.chunks[5].offset] ^= 1
    differ = Differ(new, (old, table), lambda number, frame, leaf: None)
    with pytest.raises(Corrupt, match=f"chunk 5 .*{name}"):
        list(differ.frames(threads=1))


def test_only_a_window_is_computed_ahead():
    started = []

    def work(item):
        started.append(item)
        return item

    results = in_order(work, range(100), threads=2, window=5)
    assert [next(results) for _ in range(10)] == list(range(10))
    assert len(started) <= 10 + 5
    results.close()
    assert list(in_order(work, range(50), threads=3, window=7)) == list(range(50))


def test_after_closing_no_worker_is_at_work(monkeypatch):
    from weightsync.publisher import diff as module

    monkeypatch.setattr(module, "GROUP_BYTES", 1)
    old, new, busy, calls = Memory(make()), Memory(step(make(), 1, 1.0)), threading.Semaphore(0), []

    def check(number, frame, leaf):
        calls.append(number)
        busy.release()
        threading.Event().wait(0.01)

    frames = Differ(new, (old, old.table()), check).frames(threads=3)
    next(frames)
    assert busy.acquire(timeout=30)
    frames.close()
    seen = len(calls)
    assert seen < len(new.layout.chunks)
    assert threading.Event().wait(0.1) is False
    assert len(calls) == seen


def test_groups_cover_all_chunks_in_order():
    layout = Memory({f"t{n:04}": ("U8", (2,), b"ab") for n in range(1000)}).layout
    found = [[chunk.number for chunk in group] for group in groups(layout)]
    assert functools.reduce(operator.iadd, found, []) == list(range(1000))
    assert max(map(len, found)) == 256


def test_shards_are_cut_by_size_and_named_by_digest():
    frames = [[(1, b"a" * 60), (2, b"b" * 60)], [(5, b"c" * 10)], [(9, b"d" * 200), (10, b"e")]]
    shards = list(pack(frames, shard_bytes=100))
    assert [(s.entry.first, s.entry.last) for s in shards] == [(1, 2), (5, 9), (10, 10)]
    assert [bytes(f) for s in shards for _, f in parse_shard(s.data, 11)] == [f for group in frames for _, f in group]
    assert all(s.entry.nbytes == len(s.data) for s in shards)
    for shard in shards:
        shard.entry.ref.check(shard.data, "shard")
    assert list(pack([], shard_bytes=100)) == []


def test_an_input_error_in_a_worker_comes_out():
    class Cut(Memory):
        def read(self, chunk, into):
            if chunk.number == 7:
                raise Invalid("'x.safetensors' was cut")
            return super().read(chunk, into)

    with pytest.raises(Invalid, match="was cut"):
        diff(Memory(make()), Cut(step(make(), 1)))
