"""Which faults a memory store injects, drawn from a seed or asked for one by one."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from blake3 import blake3

READS = frozenset({"get", "get_if_changed", "read_into", "stat", "list"})
CONDITIONAL = frozenset({"create", "swap"})
WRITES = CONDITIONAL | {"put", "delete"}
STORES = CONDITIONAL | {"put"}


class Fault(Enum):
    """What can go wrong with one operation, and with which operations."""

    UNAVAILABLE = ("unavailable", READS | WRITES)  # refused before it had an effect: `Unavailable`
    LOST_APPLIED = ("lost_applied", WRITES)  # took effect, reply lost: `OutcomeUnknown`
    LOST_DROPPED = ("lost_dropped", WRITES)  # request lost: `OutcomeUnknown`
    CONFLICT_409 = ("conflict_409", CONDITIONAL)  # the store saw another writer at work and did nothing: `OutcomeUnknown`
    PRECONDITION_412 = ("precondition_412", CONDITIONAL)  # took effect, repeated on the way, and the repeat was refused
    STALE_READ = ("stale_read", READS)  # answers as of some operations ago
    TORN = ("torn", STORES)  # a prefix took effect: `OutcomeUnknown`
    CRASH_BEFORE = ("crash_before", WRITES)  # the process dies: `Crashed`
    CRASH_AFTER = ("crash_after", WRITES)
    CRASH_TORN = ("crash_torn", STORES)

    def __init__(self, label: str, operations: frozenset[str]) -> None:
        self.label = label
        self.operations = operations


class Crashed(BaseException):
    """A simulated death of the process; no handler for errors may catch it, so it derives from `BaseException`."""


@dataclass(frozen=True)
class Faults:
    """Probabilities for each operation that a fault applies to, and the seed they are drawn from. At most one strikes an operation.

    The same calls in the same order meet the same faults. A stale read sees the store as it was up to `stale_operations` ago.
    """

    seed: int = 0
    unavailable: float = 0.0
    lost_applied: float = 0.0
    lost_dropped: float = 0.0
    conflict_409: float = 0.0
    precondition_412: float = 0.0
    stale_read: float = 0.0
    torn: float = 0.0
    crash_before: float = 0.0
    crash_after: float = 0.0
    crash_torn: float = 0.0
    stale_operations: int = 8


@dataclass
class Planned:
    """A fault to strike once: the operation after `skip` others that match `operation` ("" = any) and have `key` in their key."""

    fault: Fault
    operation: str = ""
    key: str = ""
    skip: int = 0

    def strikes(self, operation: str, key: str) -> bool:
        """Counts a matching operation down; True when it is the one."""
        if operation not in self.fault.operations or self.operation not in ("", operation) or self.key not in key:
            return False
        self.skip -= 1
        return self.skip < 0


@dataclass
class Chooser:
    """Decides which fault strikes. Not thread-safe: the store holds its lock."""

    faults: Faults
    planned: list[Planned] = field(default_factory=list)
    _draws: int = 0

    def choose(self, operation: str, key: str) -> Fault | None:
        """The fault for this operation, or None."""
        for plan in list(self.planned):
            if plan.strikes(operation, key):
                self.planned.remove(plan)
                return plan.fault
        return self._draw(operation, (fault for fault in Fault if operation in fault.operations))

    def _draw(self, operation: str, candidates: Iterable[Fault]) -> Fault | None:
        threshold = 0.0
        dice = self.uniform(operation)
        for fault in candidates:
            threshold += getattr(self.faults, fault.label)
            if dice < threshold:
                return fault
        return None

    def uniform(self, purpose: str) -> float:
        """The next number of the seed's sequence, in [0, 1)."""
        self._draws += 1
        digest = blake3(f"{self.faults.seed}/{self._draws}/{purpose}".encode()).digest(length=8)
        return int.from_bytes(digest, "big") / 2**64

    def below(self, end: int, purpose: str) -> int:
        """A number in [0, `end`)."""
        return int(self.uniform(purpose) * end)
