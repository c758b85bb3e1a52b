"""What every `ObjectStore` must do.

A backend's tests inherit `ObjectStoreContract` and give it a fixture `store`:

    class TestMyStore(ObjectStoreContract):
        @pytest.fixture
        def store(self):
            return MyStore(...)

The store must be empty under `contract/`, and honour conditional writes. Needs pytest.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from weightsync.errors import AlreadyExists, Conflict, Corrupt, Invalid, NotFound
from weightsync.store.api import ObjectStore
from weightsync.store.probe import probe
from weightsync.store.settle import ensure

KEY = "contract/object"
LIMIT = 1 << 20
HOSTILE = (
    "",
    "/",
    "/etc/passwd",
    "a//b",
    "a/",
    "../a",
    "a/../b",
    "a/./b",
    "..",
    ".hidden",
    "a\0b",
    "a b",
    "a\\b",
    "é",
    "a\nb",
    "x" * 201,
    "a/" * 600 + "a",
)


def _pattern(count: int) -> bytes:
    """Bytes that tell every position of up to 16 MiB from its neighbours."""
    return b"".join(i.to_bytes(4, "little") for i in range(-(-count // 4)))[:count]


class ObjectStoreContract:
    """Inherit, and override `store`; `large_bytes` so that the backend splits what is that large."""

    large_bytes = 3 * LIMIT + 7

    @pytest.fixture
    def store(self) -> ObjectStore:
        """The store under test."""
        raise NotImplementedError

    # reading what was written

    @pytest.mark.parametrize("data", [b"", b"\0", b"hello\r\n", bytes(range(256)) * 16])
    def test_gives_back_the_bytes(self, store: ObjectStore, data: bytes) -> None:
        """Whatever they are."""
        store.create(KEY, data)
        assert store.get(KEY, max_bytes=LIMIT).data == data
        assert store.stat(KEY).size_bytes == len(data)

    def test_takes_any_buffer_and_keeps_a_copy(self, store: ObjectStore) -> None:
        """A trainer goes on to change its memory."""
        buffer = bytearray(b"before")
        store.create(KEY, memoryview(buffer)[:3])
        store.put(KEY + "2", buffer)
        buffer[:] = b"after!"
        assert store.get(KEY, max_bytes=LIMIT).data == b"bef"
        assert store.get(KEY + "2", max_bytes=LIMIT).data == b"before"

    def test_wider_elements_are_stored_as_bytes(self, store: ObjectStore) -> None:
        """A view of 32-bit lanes is as good as one of bytes."""
        store.create(KEY, memoryview(bytes(range(8))).cast("I"))
        assert store.get(KEY, max_bytes=8).data == bytes(range(8))
        lanes = memoryview(bytearray(8)).cast("I")
        store.read_into(KEY, lanes)
        assert lanes.tobytes() == bytes(range(8))

    def test_missing_objects_are_not_found(self, store: ObjectStore) -> None:
        """Also below an object, and where other objects lie below."""
        store.create("contract/a/b", b"1")
        for key in ("contract/none", "contract/a", "contract/a/b/c", "contract/x/y/z"):
            for look in _looks(store, key):
                with pytest.raises(NotFound):
                    look()

    def test_a_bound_is_kept(self, store: ObjectStore) -> None:
        """`max_bytes` itself is allowed, one less is `Corrupt`."""
        store.create(KEY, b"12345")
        assert store.get(KEY, max_bytes=5).data == b"12345"
        with pytest.raises(Corrupt):
            store.get(KEY, max_bytes=4)
        with pytest.raises(Corrupt):
            store.get_if_changed(KEY, "another", max_bytes=4)

    def test_get_if_changed(self, store: ObjectStore) -> None:
        """None exactly while the tag is the same."""
        etag = store.create(KEY, b"one")
        assert store.get_if_changed(KEY, etag, max_bytes=LIMIT) is None
        second = store.swap(KEY, b"two", etag)
        found = store.get_if_changed(KEY, etag, max_bytes=LIMIT)
        assert found is not None
        assert (found.data, found.etag) == (b"two", second)

    def test_all_methods_give_the_same_tag(self, store: ObjectStore) -> None:
        """What `create` returns is what the others see; other bytes have another tag."""
        etag = store.create(KEY, b"one")
        assert {store.get(KEY, max_bytes=9).etag, store.stat(KEY).etag, *(found.etag for found in store.list(KEY))} == {etag}
        assert store.put(KEY, b"two") != etag

    # ranges and large objects

    def test_reads_ranges(self, store: ObjectStore) -> None:
        """Into a part of a buffer, leaving the rest alone."""
        store.create(KEY, b"0123456789")
        buffer = bytearray(b"..........")
        store.read_into(KEY, memoryview(buffer)[2:5], start=7)
        assert buffer == b"..789....."
        store.read_into(KEY, memoryview(buffer))
        assert buffer == b"0123456789"
        store.read_into(KEY, memoryview(buffer)[:0], start=10)

    @pytest.mark.parametrize(("start", "count"), [(0, 11), (1, 10), (9, 2), (10, 1), (4000, 1), (11, 0)])
    def test_a_range_beyond_the_end_is_corrupt(self, store: ObjectStore, start: int, count: int) -> None:
        """Nothing is padded."""
        store.create(KEY, b"0123456789")
        with pytest.raises(Corrupt):
            store.read_into(KEY, memoryview(bytearray(count)), start=start)

    def test_large_objects(self, store: ObjectStore) -> None:
        """Written and read in parts, with an odd rest; created only once; swapped and replaced."""
        data = _pattern(self.large_bytes)
        etag = store.create(KEY, data)
        with pytest.raises(AlreadyExists):
            store.create(KEY, data[:-1])
        buffer = bytearray(len(data) - 5)
        store.read_into(KEY, memoryview(buffer), start=5)
        assert buffer == data[5:]
        assert store.get(KEY, max_bytes=len(data)).data == data
        assert store.stat(KEY).etag == etag
        other = data[1:] + b"x"
        second = store.swap(KEY, other, etag)
        assert second != etag
        with pytest.raises(Conflict):
            store.swap(KEY, data, etag)
        assert store.get(KEY, max_bytes=len(data)).data == other
        ensure(store, KEY, other)

    # conditional writes

    def test_create_only_once(self, store: ObjectStore) -> None:
        """The first one stays, also when the second has the same bytes."""
        store.create(KEY, b"first")
        for data in (b"second", b"first", b""):
            with pytest.raises(AlreadyExists):
                store.create(KEY, data)
        assert store.get(KEY, max_bytes=LIMIT).data == b"first"

    def test_swap_needs_the_current_tag(self, store: ObjectStore) -> None:
        """Stale and made-up tags conflict and change nothing."""
        first = store.create(KEY, b"1")
        second = store.swap(KEY, b"2", first)
        for stale in (first, "made-up"):
            with pytest.raises(Conflict):
                store.swap(KEY, b"3", stale)
        assert store.get(KEY, max_bytes=LIMIT).data == b"2"
        store.put(KEY, b"4")
        with pytest.raises(Conflict):
            store.swap(KEY, b"5", second)

    def test_swap_makes_nothing_new(self, store: ObjectStore) -> None:
        """An object that is not there, or no longer, conflicts."""
        etag = store.create(KEY, b"1")
        store.delete(KEY)
        for key in (KEY, "contract/never/was"):
            with pytest.raises(Conflict):
                store.swap(key, b"2", etag)
        assert list(store.list("contract/")) == []

    def test_put_creates_and_replaces(self, store: ObjectStore) -> None:
        """Whatever is there."""
        store.put(KEY, b"longer than the next")
        etag = store.put(KEY, b"next")
        assert store.get(KEY, max_bytes=LIMIT).data == b"next"
        assert store.swap(KEY, b"last", etag) == store.stat(KEY).etag

    def test_racing_creates_have_one_winner(self, store: ObjectStore) -> None:
        """Whose bytes stand there, whole."""
        for turn in range(2):
            key = f"{KEY}-{turn}"
            won = _race(6, partial(_create_numbered, store, key))
            assert len(won) == 1
            assert store.get(key, max_bytes=LIMIT).data == b"%d" % won[0] * 999

    def test_racing_swaps_lose_no_update(self, store: ObjectStore) -> None:
        """A counter counted by several ends at the number of swaps that succeeded."""
        store.create(KEY, b"0")
        assert len(_race(6, lambda _: _increment(store, 5))) == 6
        assert store.get(KEY, max_bytes=LIMIT).data == b"30"

    def test_readers_see_old_or_new(self, store: ObjectStore) -> None:
        """Never a mixture, never nothing."""
        states = [bytes([65 + i]) * (100 + 1000 * i) for i in range(6)]
        etag = store.create(KEY, states[0])
        done = threading.Event()

        def read() -> set[bytes]:
            seen = {store.get(KEY, max_bytes=LIMIT).data}
            while not done.is_set():
                seen.add(store.get(KEY, max_bytes=LIMIT).data)
            return seen

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            for state in states[1:]:
                etag = store.swap(KEY, state, etag)
            done.set()
            assert all(reader.result() <= set(states) for reader in readers)

    # listing and deleting

    def test_lists_in_key_order(self, store: ObjectStore) -> None:
        """Of whole keys: `-` and `.` sort before `/`."""
        names = ["a-b", "a.b", "a/b", "a/c/d", "a0", "b/a", "ab"]
        for name in names:
            store.create(f"contract/{name}", name.encode())
        found = list(store.list("contract/"))
        assert [item.key for item in found] == sorted(f"contract/{name}" for name in names)
        assert [item.size_bytes for item in found] == [len(item.key) - len("contract/") for item in found]

    def test_a_prefix_is_any_beginning(self, store: ObjectStore) -> None:
        """Whole segments or not."""
        for name in ("v/1/m", "v/10/m", "v/2/m", "w"):
            store.create(f"contract/{name}", b"")
        for prefix, count in (
            ("", 4),
            ("contract/v/1", 2),
            ("contract/v/1/", 1),
            ("contract/v/1/m", 1),
            ("contract/v", 3),
            ("contract/z", 0),
            ("zz", 0),
        ):
            found = [item.key for item in store.list(prefix) if item.key.startswith("contract/")]
            assert len(found) == count, prefix

    def test_delete(self, store: ObjectStore) -> None:
        """Removes one, is content with none, and leaves the key free."""
        store.create(KEY, b"1")
        store.create(KEY + "2", b"2")
        store.delete(KEY)
        store.delete(KEY)
        store.delete("contract/never/was")
        assert [item.key for item in store.list("contract/")] == [KEY + "2"]
        store.create(KEY, b"3")
        assert store.get(KEY, max_bytes=LIMIT).data == b"3"

    # keys and helpers

    @pytest.mark.parametrize("key", HOSTILE, ids=[ascii(key)[:24] for key in HOSTILE])
    def test_hostile_keys_are_invalid(self, store: ObjectStore, key: str) -> None:
        """By every method, before anything happens."""
        for call in (*_looks(store, key), *_changes(store, key)):
            with pytest.raises(Invalid):
                call()

    def test_hostile_prefixes_are_invalid(self, store: ObjectStore) -> None:
        """A listing cannot leave the store either."""
        for prefix in ("/", "../", "a//", "a/../", ".tmp", "a/.", "\0"):
            with pytest.raises(Invalid):
                list(store.list(prefix))

    def test_probe_finds_conditional_writes(self, store: ObjectStore) -> None:
        """And cleans up."""
        assert probe(store, "contract/") == "full"
        assert list(store.list("contract/")) == []

    def test_ensure(self, store: ObjectStore) -> None:
        """Identical bytes have won; others have lost."""
        ensure(store, KEY, b"mine")
        ensure(store, KEY, bytearray(b"mine"))
        for other in (b"mine!", b"mime", b""):
            with pytest.raises(AlreadyExists, match="contract/object"):
                ensure(store, KEY, other)

    def test_the_url_names_the_store(self, store: ObjectStore) -> None:
        """Without credentials."""
        assert "://" in store.url
        assert "@" not in store.url


def _looks(store: ObjectStore, key: str) -> list[Callable[[], object]]:
    return [
        lambda: store.get(key, max_bytes=LIMIT),
        lambda: store.get_if_changed(key, "tag", max_bytes=LIMIT),
        lambda: store.stat(key),
        lambda: store.read_into(key, memoryview(bytearray(1))),
        lambda: store.read_into(key, memoryview(b"")),
    ]


def _changes(store: ObjectStore, key: str) -> list[Callable[[], object]]:
    return [
        lambda: store.create(key, b""),
        lambda: store.swap(key, b"", ""),
        lambda: store.put(key, b""),
        partial(store.delete, key),
    ]


def _race(count: int, act: Callable[[int], object]) -> list[int]:
    """Runs `act(0..count-1)` at once; returns who did not meet a conflict."""
    start = threading.Barrier(count)

    def run(i: int) -> bool:
        start.wait(timeout=60)
        try:
            act(i)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(count) as pool:
        return [i for i, won in enumerate(pool.map(run, range(count))) if won]


def _create_numbered(store: ObjectStore, key: str, number: int) -> None:
    store.create(key, b"%d" % number * 999)


def _increment(store: ObjectStore, times: int) -> None:
    while times:
        found = store.get(KEY, max_bytes=LIMIT)
        try:
            store.swap(KEY, b"%d" % (int(found.data) + 1), found.etag)
        except Conflict:
            continue
        times -= 1
