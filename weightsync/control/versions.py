"""VersionService: versions, and the watch."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from weightsync.catalog import Catalog, Head, commits
from weightsync.clock import Clock
from weightsync.control.convert import to_ref, to_version
from weightsync.control.feed import Feed, Watcher
from weightsync.control.methods import Call
from weightsync.control.paging import fill, number_in, size_of
from weightsync.control.runs import Runs
from weightsync.control.settings import Limits
from weightsync.control.statuses import WatchEnded
from weightsync.control.threads import Threads
from weightsync.errors import Invalid, Unavailable
from weightsync.format.keys import LATEST
from weightsync.format.limits import MAX_INTEGER
from weightsync.format.names import check_plain
from weightsync.v1 import versions_pb2 as pb

MAX_PAGE = 1000


class VersionServicer:
    """One method per call of the service."""

    def __init__(self, runs: Runs, threads: Threads, notify: Callable[[str, str], None], limits: Limits, clock: Clock) -> None:
        self._runs = runs
        self._threads = threads
        self._notify = notify
        self._limits = limits
        self._clock = clock
        self._watching: Counter[str | None] = Counter()

    async def get_version(self, request: pb.GetVersionRequest, _call: Call) -> pb.GetVersionResponse:
        """One version."""
        opened = await self._runs.run(request.run)
        check_number(request.version, "version", least=1)
        record = await self._threads.call(opened.catalog.manifest_of, request.version)
        return pb.GetVersionResponse(version=to_version(record))

    async def list_versions(self, request: pb.ListVersionsRequest, _call: Call) -> pb.ListVersionsResponse:
        """A page of them."""
        opened = await self._runs.run(request.run)
        below = number_in(request.page_token)
        return await self._threads.call(_versions_page, opened.catalog, below, size_of(request.page_size, MAX_PAGE))

    async def notify(self, request: pb.NotifyRequest, _call: Call) -> pb.NotifyResponse:
        """A hint."""
        check_plain(request.run, "run")
        self._notify(request.run, check_plain(request.channel or LATEST, "channel"))
        return pb.NotifyResponse()

    async def watch_versions(self, request: pb.WatchVersionsRequest, call: Call) -> None:
        """Moves as they happen."""
        name = call.identity.name
        self._make_room(name)
        self._watching[name] += 1
        try:
            feed = await self._runs.feed(request.run, request.channel or LATEST)
            start = request.after_sequence if request.HasField("after_sequence") else max(0, feed.sequence - 1)
            await self._watch(feed, check_number(start, "after_sequence"), call)
        finally:
            self._watching[name] -= 1
            if not self._watching[name]:
                del self._watching[name]

    def _make_room(self, name: str | None) -> None:
        if self._watching.total() >= self._limits.watchers:
            raise Unavailable(f"{self._limits.watchers} watches are open already", remedy="retry later, or watch at another server")
        if name is not None and self._watching[name] >= self._limits.watchers_per_name:
            raise Unavailable(f"{name!r} has {self._watching[name]} watches open already", remedy="close one")

    async def _watch(self, feed: Feed, cursor: int, call: Call) -> None:
        task: asyncio.Task[Any] | None = asyncio.current_task()
        if task is None:  # gRPC runs every call as one
            raise RuntimeError("not in a task")
        stream = _Stream(feed, Watcher(task, cursor), call, self._clock)
        try:
            with feed.watched(stream.watcher):
                await stream.run()
        except asyncio.CancelledError:
            if not stream.watcher.dropped:
                raise
            raise WatchEnded("this watch was dropped: its events were not taken in time", after_sequence=stream.watcher.cursor) from None


class _Stream:
    """One watch: sends what lies behind its cursor, then waits."""

    def __init__(self, feed: Feed, watcher: Watcher, call: Call, clock: Clock) -> None:
        self.watcher = watcher
        self._feed, self._call, self._clock = feed, call, clock

    async def run(self) -> None:
        feed, watcher = self._feed, self.watcher
        tick = -1  # a bookmark comes first: the stream stands
        while feed.ended is None:
            await feed.reach(watcher.cursor)  # there may be more to read back than at the start
            if tick != feed.tick:
                tick = feed.tick
                self._call.recheck()
                await self._bookmark()
                continue
            for event in feed.after(watcher.cursor):
                await self._write(event.data)
                watcher.cursor = event.sequence
            if watcher.cursor >= feed.sequence and tick == feed.tick and feed.ended is None:
                await feed.wait()
        if isinstance(feed.ended, Unavailable):
            raise WatchEnded(feed.ended.message, after_sequence=watcher.cursor)
        raise feed.ended

    async def _bookmark(self) -> None:
        message = pb.WatchVersionsResponse(bookmark=pb.Bookmark(sequence=self.watcher.cursor))
        await self._write(message.SerializeToString())

    async def _write(self, data: bytes) -> None:
        self.watcher.writing_since_s = self._clock.monotonic_s()
        await self._call.write(data)
        self.watcher.writing_since_s = None


def check_number(value: int, what: str, *, least: int = 0) -> int:
    """Raises `Invalid` for a number that no record can hold."""
    if not least <= value <= MAX_INTEGER:
        raise Invalid(f"{what} {value} is not from {least} to 2^53 - 1")
    return value


def _versions_page(catalog: Catalog, below: int | None, size: int) -> pb.ListVersionsResponse:
    head = catalog.head()
    page, more = fill(_committed(catalog, head, below) if head else (), size)
    return pb.ListVersionsResponse(versions=page, next_page_token=str(page[-1].version) if more else "")


def _committed(catalog: Catalog, head: Head, below: int | None) -> Iterator[pb.CommittedVersion]:
    """Versions newest first."""
    for move in commits(move for move, _ in catalog.history(head)):
        if move.manifest is not None and (below is None or move.version < below):
            yield pb.CommittedVersion(
                version=move.version,
                manifest=to_ref(move.manifest),
                sequence=move.sequence,
                epoch=move.epoch,
                who=move.who,
                committed_ms=move.created_ms,
            )
