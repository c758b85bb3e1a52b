"""`ensure` under everything that can happen to a create."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weightsync.errors import AlreadyExists, Denied, NoSpace, NotFound, Unavailable
from weightsync.store.api import Buffer, Stat
from weightsync.store.memory import MemoryStore
from weightsync.store.memory_faults import Fault, Faults
from weightsync.store.retry import RetryPolicy
from weightsync.store.settle import BLOCK_BYTES, ensure
from weightsync.testing.clock import ManualClock

PATIENT = RetryPolicy(attempts=60, deadline_s=1e6)
RATES = st.floats(0, 0.12)


def content(store: MemoryStore) -> bytes:
    store.set_faults(Faults())
    return store.get("k", max_bytes=1 << 30).data


@pytest.mark.parametrize("fault", [f for f in Fault if "create" in f.operations and "CRASH" not in f.name and f is not Fault.TORN])
def test_one_fault_does_not_stop_it(fault: Fault) -> None:
    store = MemoryStore()
    store.inject(fault, operation="create")
    ensure(store, "k", b"mine", clock=ManualClock())
    assert content(store) == b"mine"


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.tuples(RATES, RATES, RATES, RATES, RATES, st.floats(0, 0.4)))
def test_no_mixture_of_faults_stops_it(seed: int, rates: tuple[float, ...]) -> None:
    names = ("unavailable", "lost_applied", "lost_dropped", "conflict_409", "precondition_412", "stale_read")
    store = MemoryStore(faults=Faults(seed, **dict(zip(names, rates, strict=True))))
    ensure(store, "k", b"mine", clock=ManualClock(), policy=PATIENT)
    assert content(store) == b"mine"


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_other_bytes_always_lose(seed: int) -> None:
    store = MemoryStore()
    store.create("k", b"theirs")
    store.set_faults(Faults(seed, unavailable=0.1, lost_applied=0.1, lost_dropped=0.1, conflict_409=0.1, stale_read=0.2))
    with pytest.raises(AlreadyExists, match="'k'"):
        ensure(store, "k", b"mine", clock=ManualClock(), policy=PATIENT)
    assert content(store) == b"theirs"


def test_a_torn_write_is_noticed() -> None:
    for seed in range(30):
        store = MemoryStore(faults=Faults(seed))
        store.inject(Fault.TORN)
        with pytest.raises(AlreadyExists, match="'k'"):
            ensure(store, "k", b"0123456789", clock=ManualClock())


def test_racing_writers_of_different_bytes_have_one_winner() -> None:
    for seed in range(20):
        store = MemoryStore(faults=Faults(seed, lost_applied=0.3, conflict_409=0.2, precondition_412=0.1))
        start = threading.Barrier(4)

        def run(i: int, store: MemoryStore = store, start: threading.Barrier = start) -> bool:
            start.wait(timeout=60)
            try:
                ensure(store, "k", b"%d" % (i // 2), clock=ManualClock(), policy=PATIENT)
            except AlreadyExists:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(run, range(4)))
        assert won in ([True, True, False, False], [False, False, True, True])  # identical bytes win together
        assert content(store) == b"%d" % (0 if won[0] else 1)


@pytest.mark.parametrize("error", [Denied("no"), NoSpace("no")])
def test_what_waiting_does_not_mend_ends_it(error: Unavailable) -> None:
    class Refusing(MemoryStore):
        def create(self, key: str, data: Buffer) -> str:
            raise error

    clock = ManualClock()
    with pytest.raises(type(error)):
        ensure(Refusing(), "k", b"", clock=clock)
    assert clock.sleeps_s == []


def test_a_store_that_never_answers_ends_it() -> None:
    store = MemoryStore(faults=Faults(lost_dropped=1))
    with pytest.raises(Unavailable):
        ensure(store, "k", b"", clock=ManualClock(), policy=RetryPolicy(attempts=4))
    assert sum(operation.name == "create" for operation in store.log) == 4


def test_an_object_that_exists_and_cannot_be_read_ends_it() -> None:
    class Blind(MemoryStore):
        def stat(self, key: str) -> Stat:
            raise NotFound(key)

    store = Blind()
    store.create("k", b"mine")
    with pytest.raises(Unavailable, match="exists, yet cannot be read"):
        ensure(store, "k", b"mine", clock=ManualClock())


def test_large_objects_are_compared_in_blocks() -> None:
    largest = 0

    class Watching(MemoryStore):
        def read_into(self, key: str, into: memoryview, *, start: int = 0) -> None:
            nonlocal largest
            largest = max(largest, into.nbytes)
            super().read_into(key, into, start=start)

    store, data = Watching(), bytearray(2 * BLOCK_BYTES + 1)
    store.create("k", data)
    ensure(store, "k", data)
    assert largest == BLOCK_BYTES
    data[-1] = 1
    with pytest.raises(AlreadyExists):
        ensure(store, "k", data)
