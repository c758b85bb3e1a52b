"""The runs and channels that are open on this server. Everything in here can be dropped and is read from the store again."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from weightsync.catalog import Catalog
from weightsync.clock import Clock
from weightsync.control.feed import Feed, read_news
from weightsync.control.lease_book import LeaseBook
from weightsync.control.roster import Roster
from weightsync.control.settings import ServerSettings
from weightsync.control.threads import Threads
from weightsync.errors import NotFound, Unavailable, WeightsyncError
from weightsync.format.keys import LATEST
from weightsync.format.names import check_plain
from weightsync.v1.fleet_pb2 import Subscriber


@dataclass(eq=False)
class OpenRun:
    """A run that exists. `leases` is used under `leases_lock` only."""

    catalog: Catalog
    roster: Roster
    leases: LeaseBook
    feeds: dict[str, Feed] = field(default_factory=dict)
    leases_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    used_s: float = 0.0


class Runs:
    """Opens runs and channels when asked for. Lives on the event loop; `threads` do the reading."""

    def __init__(self, open_catalog: Callable[[str], Catalog], threads: Threads, settings: ServerSettings, clock: Clock) -> None:
        self._open_catalog = open_catalog
        self._threads = threads
        self._settings = settings
        self._clock = clock
        self._runs: dict[str, OpenRun] = {}
        self._opening: dict[tuple[str, str], asyncio.Lock] = {}
        self._ended: WeightsyncError | None = None

    async def run(self, name: str) -> OpenRun:
        """Raises `NotFound` when there is no such run in the store, `Invalid` for an impossible name."""
        found = self._runs.get(check_plain(name, "run"))
        if found is None:
            catalog = self._open_catalog(name)
            await self._threads.call(catalog.run)
            found = self._runs.get(name) or self._keep(name, catalog)
        found.used_s = self._clock.monotonic_s()
        return found

    async def feed(self, run: str, channel: str) -> Feed:
        """The channel's feed, its head read. Raises `NotFound` for a channel that does not exist (`latest` may be about to)."""
        opened = await self.run(run)
        feed = opened.feeds.get(check_plain(channel, "channel"))
        if feed is None:
            lock = self._opening.setdefault((run, channel), asyncio.Lock())
            try:
                async with lock:
                    feed = opened.feeds.get(channel) or await self._open_feed(opened, channel)
            finally:
                if not lock.locked():
                    self._opening.pop((run, channel), None)
        feed.used_s = self._clock.monotonic_s()
        return feed

    def open_feed(self, run: str, channel: str) -> Feed | None:
        """The channel's feed if somebody has asked for it lately."""
        opened = self._runs.get(run)
        return opened.feeds.get(channel) if opened else None

    def feeds(self) -> list[Feed]:
        """All that are open."""
        return [feed for opened in self._runs.values() for feed in opened.feeds.values()]

    def rosters(self) -> list[Roster]:
        """Those of all open runs."""
        return [opened.roster for opened in self._runs.values()]

    def fleets(self) -> dict[str, list[Subscriber]]:
        """Subscribers of all open runs."""
        return {name: [opened.roster.get(one) for one in opened.roster.names()] for name, opened in self._runs.items()}

    def end_feed(self, feed: Feed, error: WeightsyncError) -> None:
        """Ends its watches; the next one opens it anew."""
        opened = self._runs.get(feed.catalog.keys.run)
        if opened is not None and opened.feeds.get(feed.channel) is feed:
            del opened.feeds[feed.channel]
        feed.end(error)

    def end(self, error: WeightsyncError) -> None:
        """Ends all watches, now and to come: the server stops."""
        self._ended = error
        for feed in self.feeds():
            feed.end(error)
        for roster in self.rosters():
            roster.end(error)

    def close_idle(self, before_s: float) -> None:
        """Closes what nobody has asked for since (monotonic)."""
        for name, opened in list(self._runs.items()):
            for channel, feed in list(opened.feeds.items()):
                if not feed.watchers and feed.used_s < before_s:
                    del opened.feeds[channel]
            if self._is_idle(opened, before_s):
                del self._runs[name]

    def _is_idle(self, opened: OpenRun, before_s: float) -> bool:
        return opened.used_s < before_s and not opened.feeds and not opened.roster.in_use and not opened.leases_lock.locked()

    def _keep(self, name: str, catalog: Catalog) -> OpenRun:
        if len(self._runs) >= self._settings.limits.runs:
            self.close_idle(self._clock.monotonic_s())
        if len(self._runs) >= self._settings.limits.runs:
            raise Unavailable("the control plane has too many runs open", remedy="retry later, or ask another server")
        pace, limits = self._settings.pace, self._settings.limits
        roster = Roster(limits.subscribers, pace.forget_s, self._clock)
        if self._ended is not None:
            roster.end(self._ended)
        self._runs[name] = OpenRun(catalog, roster, LeaseBook(catalog, self._clock))
        return self._runs[name]

    async def _open_feed(self, opened: OpenRun, channel: str) -> Feed:
        limits = self._settings.limits
        if len(self.feeds()) >= limits.feeds:
            raise Unavailable("the control plane watches too many channels", remedy="retry later, or ask another server")
        feed = Feed(opened.catalog, channel, limits.history, self._threads)
        news = await self._threads.call(partial(read_news, feed.catalog, channel, None, limits.history))
        if news is not None:
            feed.take(news)
        elif channel != LATEST:
            raise no_channel(opened.catalog.keys.run, channel)
        feed.ended = self._ended
        opened.feeds[channel] = feed
        return feed


def no_channel(run: str, channel: str) -> NotFound:
    """Nobody has moved it yet."""
    return NotFound(
        f"channel {channel!r} of run {run!r} does not exist", remedy="`weightsync status` lists those that do; promote a version to it"
    )
