"""The fleet of one run, as it says of itself. Soft state, bounded, forgotten when silent; only on the event loop."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from weightsync.clock import Clock
from weightsync.errors import NotFound, Unavailable, WeightsyncError
from weightsync.v1 import fleet_pb2 as pb

GONE_KEPT = 4096  # names that have left, for watchers to learn


class Entry(NamedTuple):
    """A subscriber and the number of its last change."""

    revision: int
    subscriber: pb.Subscriber
    seen_s: float


class Changes(NamedTuple):
    """What happened since a revision. `reset`: all of it, because too much has happened."""

    revision: int
    reset: bool
    changed: list[pb.Subscriber]
    gone: list[str]


class Roster:
    """Subscribers by name."""

    def __init__(self, most: int, forget_s: float, clock: Clock) -> None:
        self._most = most
        self._forget_s = forget_s
        self._clock = clock
        self._entries: OrderedDict[str, Entry] = OrderedDict()  # in the order of their last change
        self._gone: OrderedDict[str, int] = OrderedDict()
        self._gone_before = 0  # departures up to this revision are no longer known
        self._revision = 0
        self._changed = asyncio.Event()
        self.watchers = 0
        self.ended: WeightsyncError | None = None

    @property
    def in_use(self) -> bool:
        """Whether anything would be lost."""
        return bool(self._entries) or self.watchers > 0

    def register(self, subscriber: pb.Subscriber) -> None:
        """Makes it known, or replaces what was said. Raises `Unavailable` when there are too many."""
        self.forget()
        if subscriber.name not in self._entries and len(self._entries) >= self._most:
            raise Unavailable(f"there are {self._most} subscribers already", remedy="retry later, or ask another server")
        self._put(subscriber)

    def report(self, name: str, report: pb.SubscriberReport) -> None:
        """Replaces a subscriber's last words. Raises `NotFound`."""
        self.forget()
        entry = self._entries.get(name)
        if entry is None:
            raise NotFound(f"subscriber {name!r} is not known here", remedy="register, then report again")
        changed = pb.Subscriber()
        changed.CopyFrom(entry.subscriber)
        changed.report.CopyFrom(report)
        self._put(changed)

    def names(self) -> list[str]:
        """All, sorted."""
        self.forget()
        return sorted(self._entries)

    def get(self, name: str) -> pb.Subscriber:
        """One that is known."""
        return self._entries[name].subscriber

    def forget(self) -> None:
        """Drops who was silent for too long."""
        before_s = self._clock.monotonic_s() - self._forget_s
        while self._entries:
            name, entry = next(iter(self._entries.items()))
            if entry.seen_s >= before_s:
                return
            del self._entries[name]
            self._revision += 1
            self._gone[name] = self._revision
            self._gone.move_to_end(name)
            if len(self._gone) > GONE_KEPT:
                _, self._gone_before = self._gone.popitem(last=False)
            self._wake()

    def since(self, revision: int) -> Changes:
        """What happened after `revision` (0: everything)."""
        reset = revision == 0 or revision < self._gone_before
        oldest = 0 if reset else revision
        changed = list(_newest(self._entries, lambda entry: entry.revision > oldest))
        gone = [] if reset else [name for name, at in self._gone.items() if at > oldest]
        return Changes(self._revision, reset, changed[::-1], gone)

    async def wait(self, revision: int, timeout_s: float) -> None:
        """Until something has changed since `revision`, or for so long."""
        if self._revision != revision or self.ended is not None:
            return
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            self.forget()

    def end(self, error: WeightsyncError) -> None:
        """Ends all watches, now and to come."""
        self.ended = error
        self._wake()

    def _put(self, subscriber: pb.Subscriber) -> None:
        self._revision += 1
        subscriber.seen_ms = int(self._clock.now_s() * 1000)
        self._entries[subscriber.name] = Entry(self._revision, subscriber, self._clock.monotonic_s())
        self._entries.move_to_end(subscriber.name)
        self._gone.pop(subscriber.name, None)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _newest(entries: "OrderedDict[str, Entry]", wanted: Callable[[Entry], bool]) -> "list[pb.Subscriber]":
    found = []
    for entry in reversed(entries.values()):
        if not wanted(entry):
            break
        found.append(entry.subscriber)
    return found
