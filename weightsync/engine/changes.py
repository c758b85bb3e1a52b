"""The changes that one swap needs, made from the host's replica once each and removed at its end."""

from types import TracebackType
from typing import Self

from weightsync.engine.api import Change
from weightsync.engine.change import discard_change, inverse, make_change
from weightsync.errors import Invalid
from weightsync.format.refs import VersionRef
from weightsync.replica.back import step_back
from weightsync.replica.replica import Replica


class Changes:
    """What leads to the version that `replica` holds, from wherever its engines are; a context manager. For one thread."""

    def __init__(self, replica: Replica) -> None:
        """Raises `Invalid` where the replica holds nothing."""
        if replica.version is None:
            raise Invalid("the replica holds no version", remedy="update it first")
        self.version = replica.version
        self._replica = replica
        self._made: dict[VersionRef | None, Change] = {}
        self._backs: dict[VersionRef, Change] = {}
        self._other: list[Change] = []

    def to(self, base: VersionRef | None) -> Change:
        """From `base` to the version; whole where `base` is None or out of reach."""
        if base not in self._made:
            self._made[base] = make_change(self._replica, base, self.version)
        return self._made[base]

    def back(self, base: VersionRef) -> Change:
        """From the version to `base`, for an engine that came from there. Raises `Invalid` where there is no such way."""
        if base not in self._backs:
            self._backs[base] = inverse(self.to(base))
        return self._backs[base]

    def instead(self, version: VersionRef) -> Change:
        """All of an older version: the replica goes back to it, and nothing else of this can be used any more. Raises `Corrupt`."""
        step_back(self._replica, version)
        change = make_change(self._replica, None, version)
        self._other.append(change)
        return change

    def close(self) -> None:
        """Removes their files."""
        for change in (*self._made.values(), *self._backs.values(), *self._other):
            discard_change(change)
        self._made.clear()
        self._backs.clear()
        self._other.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
