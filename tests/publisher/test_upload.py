import threading

import pytest

from weightsync.errors import AlreadyExists, NoSpace, Unavailable
from weightsync.publisher.upload import Uploader
from weightsync.store.memory import MemoryStore
from weightsync.store.memory_faults import Fault
from weightsync.store.retry import RetryPolicy

QUICK = RetryPolicy(attempts=3, base_s=0.001, cap_s=0.001)


class Gated(MemoryStore):
    """Lets writes through when told to, and counts what waits."""

    gate = threading.Event()
    entered = 0

    def create(self, key, data):
        self.entered += 1
        assert self.gate.wait(30)
        return super().create(key, data)


def upload(uploader, kind, keys):
    with uploader:
        for key in keys:
            uploader.add(kind, key, b"ours")
        uploader.drain()


def test_what_was_acknowledged_is_counted_by_kind():
    store = MemoryStore("x")
    with Uploader(store) as uploader:
        for number in range(20):
            uploader.add("shards" if number % 2 else "files", f"run/files/{number}", bytes(number))
        uploader.drain()
    assert uploader.totals() == {"shards": sum(range(1, 20, 2)), "files": sum(range(0, 20, 2))}
    assert [len(store.get(f"run/files/{n}", max_bytes=99).data) for n in range(20)] == list(range(20))


def test_no_more_than_a_window_waits():
    store = Gated("x")
    store.gate = threading.Event()
    added = []

    def fill(uploader):
        for number in range(5):
            uploader.add("shards", f"run/files/{number}", bytes(40))
            added.append(number)

    with Uploader(store, connections=8, window_bytes=100) as uploader:
        filler = threading.Thread(target=fill, args=(uploader,))
        filler.start()
        filler.join(0.2)
        assert (added, filler.is_alive()) == ([0, 1], True)
        store.gate.set()
        filler.join(30)
        uploader.drain()
    assert added == [0, 1, 2, 3, 4]


def test_an_object_larger_than_the_window_goes_alone():
    store = MemoryStore("x")
    with Uploader(store, window_bytes=10) as uploader:
        uploader.add("shards", "run/files/a", bytes(1000))
        uploader.add("shards", "run/files/b", bytes(1000))
        uploader.drain()
    assert uploader.totals() == {"shards": 2000}


def test_the_first_failure_comes_out_and_what_has_not_begun_is_dropped():
    store = MemoryStore("x")
    for _ in range(3):
        store.inject(Fault.UNAVAILABLE, operation="create", key="files/1")
    with pytest.raises(Unavailable):
        upload(Uploader(store, connections=1, patience=QUICK), "shards", [f"run/files/{number}" for number in range(50)])
    assert sum(1 for _ in store.list("")) < 50


def test_a_failure_wakes_who_waits_for_room():
    class Full(MemoryStore):
        def create(self, key, data):
            raise NoSpace("disk full")

    with pytest.raises(NoSpace):
        upload(Uploader(Full("x"), window_bytes=1), "shards", [f"run/files/{number}" for number in range(3)])


def test_records_that_exist_are_told_and_damaged_objects_replaced():
    store = MemoryStore("x")
    for key in ("run/record", "run/object"):
        store.create(key, b"other")
    with pytest.raises(AlreadyExists):
        upload(Uploader(store, patience=QUICK), "records", ["run/record"])
    upload(Uploader(store, patience=QUICK), "layout", ["run/object"])
    assert store.get("run/record", max_bytes=9).data == b"other"
    assert store.get("run/object", max_bytes=9).data == b"ours"
