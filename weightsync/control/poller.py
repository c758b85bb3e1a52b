"""Looks at the heads that are watched: regularly, and at once when told to. One for the whole server, however many watch."""

import asyncio
import logging

from weightsync.clock import Clock, jitter
from weightsync.control.feed import Feed, News, read_news
from weightsync.control.runs import Runs
from weightsync.control.settings import ServerSettings
from weightsync.control.threads import Threads
from weightsync.errors import Corrupt, Unsupported, WeightsyncError

logger = logging.getLogger(__name__)


class Poller:
    """Drives all feeds of `runs`: news, bookmarks, slow watchers, idle channels."""

    def __init__(self, runs: Runs, settings: ServerSettings, clock: Clock) -> None:
        self._runs = runs
        self._settings = settings
        self._clock = clock
        self._threads = Threads("poll", 4, settings.limits.feeds)  # its own: a flood of questions does not delay news
        self._looking: dict[Feed, bool] = {}  # whether to look once more afterwards
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Starts polling and beating."""
        for loop in (self._poll(), self._beat(), self._sweep()):
            self._keep(asyncio.create_task(loop))

    def notify(self, run: str, channel: str) -> None:
        """Somebody says that there is something new. Many notices at once are one look."""
        feed = self._runs.open_feed(run, channel)
        if feed is not None:
            self._keep(asyncio.create_task(self.look(feed)))

    async def close(self) -> None:
        """Stops polling."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.close()

    async def look(self, feed: Feed) -> None:
        """Brings a feed up to date. Never raises: what is wrong is logged, or ends the feed."""
        if feed in self._looking:
            self._looking[feed] = True
            return
        self._looking[feed] = True
        try:
            while self._looking[feed] and feed.ended is None:
                self._looking[feed] = False
                await self._look(feed)
        finally:
            del self._looking[feed]

    async def _look(self, feed: Feed) -> None:
        try:
            news = await self._threads.call(read_news, feed.catalog, feed.channel, feed.head, feed.history)
            if news is not None:
                self._take(feed, news)
        except (Corrupt, Unsupported) as error:
            logger.error("channel %r of run %r: %s", feed.channel, feed.catalog.keys.run, error)  # noqa: TRY400  no bug of ours
            self._runs.end_feed(feed, error)
        except WeightsyncError as error:
            logger.warning("channel %r of run %r is as it was: %s", feed.channel, feed.catalog.keys.run, error)
        except Exception:  # a bug with one channel must not stop the news of all others
            logger.exception("channel %r of run %r cannot be polled", feed.channel, feed.catalog.keys.run)

    def _take(self, feed: Feed, news: News) -> None:
        move, known = news.head.move, feed.head
        went_back = known is not None and move.sequence <= known.move.sequence and news.head.digest != known.digest
        if not went_back:
            feed.take(news)
        elif not feed.knows(move.sequence, news.head.digest):  # else an answer from the past: the next one will be newer
            raise Corrupt(
                f"channel {move.channel!r} holds another move {move.sequence} than before",
                remedy="the store was rolled back or rewritten: find out why; readers refuse it until they are told to accept it",
            )

    async def _poll(self) -> None:
        most_s = self._settings.pace.poll_s
        while True:
            await asyncio.sleep(most_s * 0.75 + jitter(most_s * 0.25))
            await asyncio.gather(*(self.look(feed) for feed in self._runs.feeds()))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.pace.bookmark_s)
            for feed in self._runs.feeds():
                feed.beat()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._settings.limits.write_s / 4))
            now_s = self._clock.monotonic_s()
            for feed in self._runs.feeds():
                for watcher in feed.watchers:
                    since_s = watcher.writing_since_s
                    if since_s is not None and now_s - since_s > self._settings.limits.write_s and not watcher.dropped:
                        watcher.dropped = True
                        watcher.task.cancel()
            self._runs.close_idle(now_s - self._settings.pace.idle_s)

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
