"""The memory store's faults: each does what its name says, and the same seed does the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weightsync.errors import AlreadyExists, Conflict, NotFound, OutcomeUnknown, Unavailable, WeightsyncError
from weightsync.store.memory import MemoryStore
from weightsync.store.memory_faults import Crashed, Fault, Faults


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def content(store: MemoryStore, key: str = "k") -> bytes | None:
    try:
        return store.get(key, max_bytes=1 << 20).data
    except NotFound:
        return None


@pytest.mark.parametrize(
    ("fault", "error", "after"),
    [
        (Fault.UNAVAILABLE, Unavailable, None),
        (Fault.LOST_APPLIED, OutcomeUnknown, b"data"),
        (Fault.LOST_DROPPED, OutcomeUnknown, None),
        (Fault.CONFLICT_409, OutcomeUnknown, None),
        (Fault.PRECONDITION_412, AlreadyExists, b"data"),
        (Fault.CRASH_BEFORE, Crashed, None),
        (Fault.CRASH_AFTER, Crashed, b"data"),
    ],
)
def test_faults_of_create(store: MemoryStore, fault: Fault, error: type[BaseException], after: bytes | None) -> None:
    store.inject(fault)
    with pytest.raises(error) as caught:
        store.create("k", b"data")
    assert type(caught.value) is error
    assert content(store) == after
    assert store.log[0].fault is fault
    store.put("k", b"next")  # struck once
    assert content(store) == b"next"


@pytest.mark.parametrize(
    ("fault", "error", "after"),
    [
        (Fault.LOST_APPLIED, OutcomeUnknown, b"new"),
        (Fault.LOST_DROPPED, OutcomeUnknown, b"old"),
        (Fault.CONFLICT_409, OutcomeUnknown, b"old"),
        (Fault.PRECONDITION_412, Conflict, b"new"),
    ],
)
def test_faults_of_swap(store: MemoryStore, fault: Fault, error: type[WeightsyncError], after: bytes) -> None:
    etag = store.create("k", b"old")
    store.inject(fault, operation="swap")
    with pytest.raises(error):
        store.swap("k", b"new", etag)
    assert content(store) == after


@pytest.mark.parametrize(("fault", "error"), [(Fault.TORN, OutcomeUnknown), (Fault.CRASH_TORN, Crashed)])
def test_a_torn_write_stores_a_true_prefix(fault: Fault, error: type[BaseException]) -> None:
    lengths = set()
    for seed in range(20):
        store = MemoryStore(faults=Faults(seed=seed))
        store.inject(fault)
        with pytest.raises(error):
            store.create("k", b"0123456789")
        data = content(store)
        assert data is not None
        assert b"0123456789".startswith(data)
        assert len(data) < 10
        lengths.add(len(data))
    assert len(lengths) > 3


def test_a_condition_that_fails_is_told_before_a_lost_reply(store: MemoryStore) -> None:
    store.create("k", b"old")
    store.inject(Fault.LOST_APPLIED)
    with pytest.raises(AlreadyExists):
        store.create("k", b"new")


def test_stale_reads_see_a_past_state() -> None:
    store = MemoryStore()
    for i in range(20):
        store.put("k", b"%d" % i)
    store.set_faults(Faults(seed=7, stale_read=1.0, stale_operations=5))
    seen = [content(store) for _ in range(3)]
    assert all(state is not None and 14 <= int(state) <= 19 for state in seen)
    assert seen != [b"19"] * 3


def test_a_stale_read_never_mixes_and_a_swap_never_uses_one() -> None:
    store = MemoryStore(faults=Faults(stale_read=1.0))
    etag = store.create("k", b"one")
    second = store.swap("k", b"two", etag)
    with pytest.raises(Conflict):
        store.swap("k", b"three", etag)
    store.swap("k", b"three", second)


@pytest.mark.parametrize("operation", ["get", "get_if_changed", "stat", "read_into", "list"])
def test_a_fresh_object_may_not_be_seen_yet(operation: str) -> None:
    seen = []
    for seed in range(20):
        store = MemoryStore(faults=Faults(seed))
        store.create("k", b"x")
        store.inject(Fault.STALE_READ, operation=operation)
        acts = {
            "get": lambda store=store: store.get("k", max_bytes=9),
            "get_if_changed": lambda store=store: store.get_if_changed("k", "", max_bytes=9),
            "stat": lambda store=store: store.stat("k"),
            "read_into": lambda store=store: store.read_into("k", memoryview(bytearray(1))) or True,
            "list": lambda store=store: list(store.list("")),
        }
        try:
            seen.append(bool(acts[operation]()))
        except NotFound:
            seen.append(False)
        assert content(store) == b"x"
    assert set(seen) == {True, False}


def test_faults_can_be_aimed(store: MemoryStore) -> None:
    store.inject(Fault.UNAVAILABLE, operation="create", key="/head", skip=1)
    store.create("a", b"")
    store.create("x/head", b"")
    store.get("x/head", max_bytes=9)
    with pytest.raises(Unavailable):
        store.create("y/head", b"")


def busy(seed: int) -> MemoryStore:
    faults = Faults(
        seed,
        unavailable=0.1,
        lost_applied=0.1,
        lost_dropped=0.1,
        conflict_409=0.1,
        precondition_412=0.1,
        stale_read=0.2,
        torn=0.1,
        crash_torn=0.05,
    )
    store = MemoryStore(faults=faults)
    for i in range(200):
        for act in (
            lambda i=i: store.create(f"k{i}", b"abcdef"),
            lambda i=i: store.get(f"k{i // 2}", max_bytes=9),
            lambda: list(store.list("")),
        ):
            try:
                act()
            except (WeightsyncError, Crashed):
                continue
    return store


def test_the_same_seed_meets_the_same_faults() -> None:
    first, second, other = busy(1), busy(1), busy(2)
    assert first.log == second.log
    assert first.log != other.log
    assert {operation.fault for operation in first.log} >= {
        Fault.UNAVAILABLE,
        Fault.TORN,
        Fault.STALE_READ,
        Fault.PRECONDITION_412,
        Fault.CRASH_TORN,
        None,
    }


def test_rates_are_what_was_asked_for() -> None:
    store = MemoryStore(faults=Faults(seed=3, unavailable=0.3))
    for _ in range(2000):
        try:
            store.get("k", max_bytes=1)
        except (Unavailable, NotFound):
            continue
    assert 500 < sum(operation.outcome == "unavailable" for operation in store.log) < 700


def test_the_log_tells_what_happened(store: MemoryStore) -> None:
    etag = store.create("k", b"x")
    with pytest.raises(AlreadyExists):
        store.create("k", b"y")
    store.get("k", max_bytes=9)
    assert [(o.number, o.name, o.key, o.outcome, o.etag) for o in store.log] == [
        (1, "create", "k", "ok", etag),
        (2, "create", "k", "already_exists", ""),
        (3, "get", "k", "ok", etag),
    ]


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(["create", "put", "swap", "delete", "get"]), st.sampled_from("ab"), st.binary(max_size=3)), max_size=30
    )
)
def test_it_is_a_map_with_conditions(operations: list[tuple[str, str, bytes]]) -> None:
    store, model = MemoryStore(), dict[str, bytes]()
    etags: dict[str, str] = {}
    for name, key, data in operations:
        if name == "create" and key in model:
            with pytest.raises(AlreadyExists):
                store.create(key, data)
        elif name == "swap" and key not in model:
            with pytest.raises(Conflict):
                store.swap(key, data, etags.get(key, "none"))
        elif name == "delete":
            store.delete(key)
            model.pop(key, None)
        elif name == "get":
            assert content(store, key) == model.get(key)
        else:
            arguments = (key, data, etags[key]) if name == "swap" else (key, data)
            etags[key] = getattr(store, name)(*arguments)
            model[key] = data
    assert {found.key: found.size_bytes for found in store.list("")} == {key: len(data) for key, data in model.items()}
