"""A run's facts, read from its store."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from weightsync.catalog import Catalog, Head, commits
from weightsync.clock import SYSTEM, Clock
from weightsync.errors import Compacted
from weightsync.format.keys import LATEST
from weightsync.format.moves import Move
from weightsync.telemetry.facts import ChannelFact, RunFacts, SubscriberFact, VersionFact

READERS = 8
VERSIONS = 20  # that are looked at, by default

A = TypeVar("A")
B = TypeVar("B")


class ReadOnce:
    """Versions that were looked at: what is committed does not change. Those not asked for any more are forgotten."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], VersionFact | None] = {}

    def facts(self, newest: Sequence[tuple[tuple[int, str], A]], read: Callable[[A], VersionFact | None]) -> list[VersionFact]:
        """Of `newest` (number and manifest, and what `read` takes), newest first, those that `read` finds, ascending."""
        fresh = [(key, one) for key, one in newest if key not in self._known]
        self._known |= zip((key for key, _ in fresh), parallel(lambda one: read(one[1]), fresh), strict=True)
        self._known = {key: self._known[key] for key, _ in newest}
        return [fact for key, _ in reversed(newest) if (fact := self._known[key]) is not None]


class StoreObserver:
    """Reads a run's store; what does not change is read once. Not for several threads at once."""

    def __init__(self, catalog: Catalog, *, versions: int = VERSIONS, clock: Clock = SYSTEM) -> None:
        self._catalog, self._limit, self._clock = catalog, versions, clock
        self._known = ReadOnce()

    def look(self, subscribers: Sequence[SubscriberFact] | None = None) -> RunFacts:
        """The run as it is now. Raises `NotFound` when it is not there, `Unavailable`, `Corrupt`."""
        names = self._catalog.channels()
        heads = parallel(self._catalog.head, sorted({LATEST, *names}))
        found = [head for head in heads if head is not None]
        if not found:
            self._catalog.run()  # there is no such run, or nobody has published
        latest = next((head for head in found if head.move.channel == LATEST), None)
        versions = self._versions(latest) if latest else []
        channels = tuple(_channel(head) for head in found)
        told = None if subscribers is None else tuple(subscribers)
        return RunFacts(self._catalog.keys.run, self._clock.now_s(), channels, tuple(versions), told)

    def _versions(self, latest: Head) -> list[VersionFact]:
        moves = list(islice(commits(move for move, _ in self._catalog.history(latest)), self._limit))
        return self._known.facts([((move.version, move.manifest.digest), move) for move in moves if move.manifest], self._version)

    def _version(self, move: Move) -> VersionFact | None:
        try:
            manifest = self._catalog.manifest_of(move.version, move.manifest.digest if move.manifest else None).manifest
        except Compacted:
            return None
        return VersionFact(
            manifest.version,
            manifest.step,
            move.created_ms / 1000,
            manifest.epoch,
            snapshot=manifest.base == 0,
            changed_lanes=manifest.changed_lanes,
            lanes=self._catalog.layout(manifest.layout).lanes,
            payload_bytes=manifest.payload_bytes,
            checkpoint_bytes=manifest.checkpoint_bytes,
        )


def _channel(head: Head) -> ChannelFact:
    move = head.move
    expires_s = None if head.expires_ms is None else head.expires_ms / 1000
    return ChannelFact(move.channel, move.version, move.sequence, move.epoch, move.created_ms / 1000, move.who, move.why, expires_s)


def parallel(function: Callable[[A], B], values: Sequence[A]) -> list[B]:
    """`function` of each value, in order, several at a time."""
    if len(values) < 2:
        return [function(value) for value in values]
    with ThreadPoolExecutor(min(READERS, len(values))) as pool:
        return list(pool.map(function, values))
