"""`mem://`: a store in this process, for tests. Linearizable but for injected stale reads; everything happens under one lock."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

from blake3 import blake3

from weightsync.clock import SYSTEM, Clock
from weightsync.errors import AlreadyExists, Conflict, Corrupt, NotFound, OutcomeUnknown, Unavailable, WeightsyncError
from weightsync.store.api import Buffer, Object, ObjectStore, Stat
from weightsync.store.keyrules import split_key, split_prefix
from weightsync.store.memory_faults import Chooser, Crashed, Fault, Faults, Planned

T = TypeVar("T")
Conditional = Literal["full", "create_only", "none"]


@dataclass(frozen=True)
class Operation:
    """A line of the store's log. `outcome` is "ok" or the `kind` of the error; `etag` is the tag read or written, if any."""

    number: int
    name: str
    key: str
    outcome: str
    etag: str = ""
    fault: Fault | None = None


@dataclass(frozen=True)
class _State:
    """What a key held from operation `number` on; `data` None is nothing."""

    number: int
    data: bytes | None
    etag: str = ""
    modified_s: float = 0.0


_ABSENT = _State(0, None)


@dataclass
class _Current:
    """The operation under way."""

    name: str
    key: str
    number: int
    fault: Fault | None
    as_of: int  # reads see the states up to this operation
    etag: str = ""


@dataclass
class MemoryStore:
    """`ObjectStore` in memory, with faults. `conditional` imitates servers that silently ignore conditional headers."""

    name: str = "anonymous"
    faults: Faults = field(default_factory=Faults)
    conditional: Conditional = "full"
    clock: Clock = SYSTEM
    log: list[Operation] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, list[_State]] = {}
        self._chooser = Chooser(self.faults)
        self._count = 0

    @property
    def url(self) -> str:
        """Where this is."""
        return f"mem://{self.name}"

    def set_faults(self, faults: Faults) -> None:
        """From now on draws from `faults`, from the start of its seed's sequence."""
        with self._lock:
            self.faults = faults
            self._chooser = Chooser(faults, self._chooser.planned)

    def inject(self, fault: Fault, *, operation: str = "", key: str = "", skip: int = 0) -> None:
        """Lets `fault` strike once: the operation after `skip` others named `operation` ("" = any) whose key contains `key`."""
        with self._lock:
            self._chooser.planned.append(Planned(fault, operation, key, skip))

    def get(self, key: str, *, max_bytes: int) -> Object:
        """The whole object."""
        return self._do("get", key, lambda current: self._get(current, max_bytes))

    def get_if_changed(self, key: str, etag: str, *, max_bytes: int) -> Object | None:
        """The whole object, or None while it still has `etag`."""

        def changed(current: _Current) -> Object | None:
            if self._seen(current).etag == etag:
                return None
            return self._get(current, max_bytes)

        return self._do("get_if_changed", key, changed)

    def read_into(self, key: str, into: memoryview, *, start: int = 0) -> None:
        """Fills `into` from `start` on."""
        view = into.cast("B")

        def fill(current: _Current) -> None:
            data = self._seen(current).data or b""
            if len(data) < start + view.nbytes:
                raise Corrupt(f"object {key!r} in {self.url} ends at byte {len(data)}, before {start + view.nbytes}")
            view[:] = data[start : start + view.nbytes]

        self._do("read_into", key, fill)

    def stat(self, key: str) -> Stat:
        """Size and tag."""
        return self._do("stat", key, lambda current: _stat(key, self._seen(current)))

    def create(self, key: str, data: Buffer) -> str:
        """Writes a new object."""

        def write(current: _Current) -> str:
            if self.conditional != "none" and self._latest(key).data is not None:
                raise AlreadyExists(f"object {key!r} in {self.url} exists")
            return self._store(current, data)

        return self._do("create", key, write)

    def swap(self, key: str, data: Buffer, etag: str) -> str:
        """Replaces the object if it still has `etag`."""

        def write(current: _Current) -> str:
            state = self._latest(key)
            if self.conditional == "full" and (state.data is None or state.etag != etag):
                what = "is gone" if state.data is None else "has changed"
                raise Conflict(f"object {key!r} in {self.url} {what}", remedy="read it again and decide again")
            return self._store(current, data)

        return self._do("swap", key, write)

    def put(self, key: str, data: Buffer) -> str:
        """Writes unconditionally."""
        return self._do("put", key, lambda current: self._store(current, data))

    def list(self, prefix: str) -> Iterator[Stat]:
        """Objects whose key starts with `prefix`, in key order."""
        split_prefix(prefix)

        def found(current: _Current) -> list[Stat]:
            states = ((key, self._at(key, current.as_of)) for key in sorted(self._states) if key.startswith(prefix))
            return [_stat(key, state) for key, state in states if state.data is not None]

        return iter(self._do("list", prefix, found, is_prefix=True))

    def delete(self, key: str) -> None:
        """Removes the object."""
        self._do("delete", key, lambda current: self._append(current, None))

    def close(self) -> None:
        """Objects stay: the next `open_store` of that name sees them."""

    def _do(self, name: str, key: str, act: Callable[[_Current], T], *, is_prefix: bool = False) -> T:
        """Runs `act` under the lock, with the fault chosen for it, and logs it."""
        if not is_prefix:
            split_key(key)
        with self._lock:
            self._count += 1
            fault = self._chooser.choose(name, key)
            current = _Current(name, key, self._count, fault, self._as_of(fault))
            outcome = "crashed"
            try:
                result = self._act(current, act)
                outcome = "ok"
                return result
            except WeightsyncError as error:
                outcome = error.kind
                raise
            finally:
                self.log.append(Operation(current.number, name, key, outcome, current.etag, fault))

    def _act(self, current: _Current, act: Callable[[_Current], T]) -> T:
        what = f"{current.name} of {current.key!r} in {self.url}"
        match current.fault:
            case Fault.UNAVAILABLE:
                raise Unavailable(f"{what}: injected fault", remedy="retry")
            case Fault.LOST_DROPPED | Fault.CONFLICT_409:
                raise OutcomeUnknown(f"{what}: injected {current.fault.label}", remedy="read back")
            case Fault.CRASH_BEFORE:
                raise Crashed(what)
        result = act(current)
        match current.fault:
            case Fault.LOST_APPLIED | Fault.TORN:
                raise OutcomeUnknown(f"{what}: injected {current.fault.label}", remedy="read back")
            case Fault.CRASH_AFTER | Fault.CRASH_TORN:
                raise Crashed(what)
            case Fault.PRECONDITION_412:
                error = AlreadyExists if current.name == "create" else Conflict
                raise error(f"{what}: refused by its own first attempt")
        return result

    def _as_of(self, fault: Fault | None) -> int:
        if fault is not Fault.STALE_READ:
            return self._count
        return self._count - 1 - self._chooser.below(self.faults.stale_operations, "stale")

    def _seen(self, current: _Current) -> _State:
        state = self._at(current.key, current.as_of)
        if state.data is None:
            raise NotFound(f"object {current.key!r} is not in {self.url}")
        current.etag = state.etag
        return state

    def _get(self, current: _Current, max_bytes: int) -> Object:
        state = self._seen(current)
        data = state.data or b""
        if len(data) > max_bytes:
            raise Corrupt(f"object {current.key!r} in {self.url} has {len(data)} bytes, more than the {max_bytes} allowed")
        return Object(data, state.etag)

    def _latest(self, key: str) -> _State:
        return self._at(key, self._count)

    def _at(self, key: str, number: int) -> _State:
        return next((state for state in reversed(self._states.get(key, ())) if state.number <= number), _ABSENT)

    def _store(self, current: _Current, data: Buffer) -> str:
        stored = memoryview(data).tobytes()
        if current.fault in (Fault.TORN, Fault.CRASH_TORN):
            stored = stored[: self._chooser.below(len(stored), "torn")]
        self._append(current, stored)
        return current.etag

    def _append(self, current: _Current, data: bytes | None) -> None:
        current.etag = "" if data is None else blake3(data).hexdigest(length=16)
        states = self._states.setdefault(current.key, [])
        states.append(_State(current.number, data, current.etag, self.clock.now_s()))
        # A stale read reaches back a bounded number of operations: what was replaced before that is never seen again.
        oldest = current.number - 1 - self.faults.stale_operations
        while len(states) > 1 and states[1].number <= oldest:
            del states[0]


def _stat(key: str, state: _State) -> Stat:
    return Stat(key, len(state.data or b""), state.etag, state.modified_s)


_named: dict[str, MemoryStore] = {}
_named_lock = threading.Lock()


def named(name: str) -> MemoryStore:
    """The process's store of that name, made at the first call."""
    with _named_lock:
        return _named.setdefault(name, MemoryStore(name))


def forget(name: str) -> None:
    """Drops the process's store of that name with all it holds."""
    with _named_lock:
        _named.pop(name, None)


if TYPE_CHECKING:
    _conforms: type[ObjectStore] = MemoryStore
