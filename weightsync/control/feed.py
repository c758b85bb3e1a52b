"""A channel's moves, ordered and without gaps, encoded once for all who watch.

A watcher is a cursor into the feed: it takes what lies behind its cursor when it is ready for it, so nothing is ever queued for it.
The last `history` moves before the head can be watched; they are read from the store's log when somebody asks for them.

Everything here runs on the event loop; only `read_news` and `read_back`, which read the store, run in a thread.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from weightsync.catalog import Catalog, Head
from weightsync.control.convert import to_move
from weightsync.control.statuses import HistoryCompacted
from weightsync.control.threads import Threads
from weightsync.errors import Corrupt, WeightsyncError
from weightsync.format.moves import Move
from weightsync.v1 import versions_pb2 as pb

BATCH = 64  # events that a watcher takes before others get their turn


class Event(NamedTuple):
    """A move, as the bytes of a `WatchVersionsResponse`."""

    sequence: int
    digest: str
    data: bytes


class News(NamedTuple):
    """What a look at the store found: the head, and the moves since the one that was known, oldest first."""

    head: Head
    moves: Sequence[tuple[Move, str]]


@dataclass(eq=False)
class Watcher:
    """One open stream. `writing_since_s`: since when its peer has not taken an event (monotonic); None while it waits for one."""

    task: "asyncio.Task[object]"
    cursor: int
    writing_since_s: float | None = None
    dropped: bool = False


@dataclass(eq=False)
class Feed:
    """One channel of one run."""

    catalog: Catalog
    channel: str
    history: int
    threads: Threads
    head: Head | None = None
    ended: WeightsyncError | None = None  # why nothing comes any more
    tick: int = 0  # bookmarks are due when it has changed
    used_s: float = 0.0  # when somebody last asked (monotonic)
    watchers: set[Watcher] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._events: list[Event] = []
        self._changed = asyncio.Event()
        self._backfill = asyncio.Lock()

    @property
    def sequence(self) -> int:
        """Where the channel is; 0 before its first move."""
        return self.head.move.sequence if self.head else 0

    @property
    def floor(self) -> int:
        """A watch can start after this sequence, not before. The same at every server that has seen the same head."""
        return max(0, self.sequence - self.history)

    # ---------------------------------------------------------------------------------------------------------- the poller's side

    def take(self, news: News) -> None:
        """Appends what is new. Raises `Corrupt` when it does not follow what is known: the store was rewritten."""
        known = self.head
        if known is not None and news.moves and news.moves[0][0].sequence == known.move.sequence + 1:
            _check_follows(known, news.moves[0][0])
        elif news.moves:
            self._events.clear()  # more moves than are kept, or the first look
        self.head = news.head
        self._events.extend(_event(move, digest) for move, digest in news.moves)
        del self._events[: bisect_right(self._events, self.floor, key=_sequence)]
        if news.moves:
            self.wake()

    def knows(self, sequence: int, digest: str) -> bool:
        """Whether that move is one of ours: an answer from the past, not another history."""
        at = bisect_right(self._events, sequence, key=_sequence) - 1
        return at >= 0 and self._events[at].sequence == sequence and self._events[at].digest == digest

    def end(self, error: WeightsyncError) -> None:
        """Ends all watches, now and to come."""
        self.ended = error
        self.wake()

    def beat(self) -> None:
        """Makes bookmarks due."""
        self.tick += 1
        self.wake()

    def wake(self) -> None:
        """Lets all watchers look."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # ---------------------------------------------------------------------------------------------------------- a watcher's side

    @contextmanager
    def watched(self, watcher: Watcher) -> Iterator[None]:
        """Counts a watcher while the block runs."""
        self.watchers.add(watcher)
        try:
            yield
        finally:
            self.watchers.discard(watcher)

    async def wait(self) -> None:
        """Until something has changed since this was called."""
        await self._changed.wait()

    async def reach(self, cursor: int) -> None:
        """Makes the moves after `cursor` available. Raises `HistoryCompacted`, and what reading the store raises."""
        if cursor >= self._first() - 1:
            return
        async with self._backfill:
            while self.head is not None and self.floor <= cursor < self._first() - 1:
                head, first = self.head, self._first()
                older = await self.threads.call(read_back, self.catalog, head, first - 1, cursor + 1)
                if self._first() == first:
                    self._events[:0] = [_event(move, digest) for move, digest in older if move.sequence > self.floor]
        if cursor < self.floor:
            raise self._compacted(cursor)

    def after(self, cursor: int) -> Sequence[Event]:
        """Up to `BATCH` events behind `cursor`, oldest first; `reach` it first."""
        if cursor >= self.sequence:
            return ()
        at = cursor + 1 - self._first()
        return self._events[at : at + BATCH]

    def _first(self) -> int:
        """The oldest sequence at hand, or the next one when there is none."""
        return self._events[0].sequence if self._events else self.sequence + 1

    def _compacted(self, cursor: int) -> HistoryCompacted:
        return HistoryCompacted(
            f"the moves of channel {self.channel!r} of run {self.catalog.keys.run!r} after sequence {cursor} are no longer kept",
            oldest_sequence=self.floor + 1,
            sequence=self.sequence,
            version=self.head.version if self.head else None,
            remedy=f"go to where the channel is now, then watch after sequence {self.sequence}",
        )


def read_news(catalog: Catalog, channel: str, known: Head | None, history: int) -> News | None:
    """A look at the head; None: as before. Blocking. Raises what the catalog raises."""
    now = catalog.head(channel) if known is None else catalog.head_if_changed(channel, known.etag)
    if now is None:
        return None
    if known is None:
        return News(now, [(now.move, now.digest)])
    if now.move.sequence <= known.move.sequence:
        return News(now, [])
    down_to = max(known.move.sequence + 1, now.move.sequence - history + 1)
    return News(now, list(catalog.history(now, down_to=down_to))[::-1])


def read_back(catalog: Catalog, head: Head, newest: int, oldest: int) -> list[tuple[Move, str]]:
    """Moves from sequence `oldest` to `newest`, oldest first, from the log. Blocking."""
    walk = catalog.history(head, down_to=oldest)
    return list(islice(walk, head.move.sequence - newest, None))[::-1]


def _event(move: Move, digest: str) -> Event:
    data = pb.WatchVersionsResponse(moved=pb.Moved(move=to_move(move), move_digest=digest)).SerializeToString()
    return Event(move.sequence, digest, data)


_sequence: Callable[[Event], int] = lambda event: event.sequence  # noqa: E731  a key function


def _check_follows(known: Head, move: Move) -> None:
    if move.previous != known.ref:
        raise Corrupt(
            f"move {move.sequence} of channel {move.channel!r} does not follow move {known.move.sequence} that was seen before",
            remedy="somebody rewrote the history: stop all writers and restore the store",
        )
