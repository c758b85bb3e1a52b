"""Many watchers in one process, on `grpc.aio`: they connect at a pace, go on after what they have, and write down what they see."""

import asyncio
import time
from contextlib import suppress
from typing import Any, Self

import grpc

from weightsync.catalog import Catalog
from weightsync.clock import jitter
from weightsync.control.convert import from_move, is_whole
from weightsync.control.dial import OPTIONS
from weightsync.control.statuses import WatchEnded, error_of
from weightsync.testing.watch_history import Bookmark, Connected, History, Interrupted, Moved
from weightsync.v1 import versions_pb2 as pb

PATH = "/weightsync.v1.VersionService/WatchVersions"
STREAMS_PER_CHANNEL = 100
CONNECTS_AT_ONCE = 64
FIRST_S = 30.0


class Watchers:
    """`count` watchers of one channel, all from its start."""

    def __init__(self, address: str, run: str, count: int, *, channel: str = "latest") -> None:
        self._address, self._run, self._channel = address, run, channel
        self.histories = [History(f"watcher {number}") for number in range(count)]
        self.received_s: list[dict[int, float]] = [{} for _ in range(count)]  # by sequence, perf_counter
        self.standing = 0
        self.interruptions = 0
        self._read: dict[bytes, Moved | Bookmark] = {}
        self._connecting = asyncio.Semaphore(CONNECTS_AT_ONCE)
        self._tasks: list[asyncio.Task[None]] = []
        self._channels: list[grpc.aio.Channel] = []

    async def __aenter__(self) -> Self:
        for number in range(len(self.histories)):
            if number % STREAMS_PER_CHANNEL == 0:
                self._channels.append(grpc.aio.insecure_channel(self._address, OPTIONS))
            self._tasks.append(asyncio.create_task(self._watch(number, self._channels[-1])))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            await channel.close()

    async def all_stand(self, timeout_s: float) -> float:
        """Waits until every watcher has a stream; how long that took, in seconds."""
        start_s = time.perf_counter()
        async with asyncio.timeout(timeout_s):
            while self.standing < len(self.histories):
                self._raise()
                await asyncio.sleep(0.02)
        return time.perf_counter() - start_s

    async def all_reach(self, sequence: int, timeout_s: float) -> None:
        """Waits until every watcher has seen that move."""
        async with asyncio.timeout(timeout_s):
            for history in self.histories:
                while history.position < sequence:
                    self._raise()
                    await asyncio.sleep(0.02)

    def _raise(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
                raise RuntimeError("a watcher has ended")

    async def _watch(self, number: int, channel: grpc.aio.Channel) -> None:
        history, method = self.histories[number], channel.unary_stream(PATH)
        while True:
            call: Any = None
            stands = False
            try:
                async with self._connecting:
                    after = history.position
                    request = pb.WatchVersionsRequest(run=self._run, channel=self._channel, after_sequence=after)
                    call = method(request.SerializeToString())
                    history.entries.append(Connected(after))
                    data = await asyncio.wait_for(call.read(), FIRST_S)
                while data is not grpc.aio.EOF:
                    if not stands:
                        self.standing, stands = self.standing + 1, True
                    self._take(number, data)
                    data = await call.read()
                history.entries.append(Interrupted())
            except TimeoutError:
                history.entries.append(Interrupted())
            except grpc.aio.AioRpcError as error:
                ended = error_of(error, self._address)
                history.entries.append(Interrupted(ended.after_sequence if isinstance(ended, WatchEnded) else None))
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    raise ended from error
            finally:
                self.standing -= stands
                if call is not None:
                    with suppress(Exception):
                        call.cancel()
            self.interruptions += 1
            await asyncio.sleep(0.05 + jitter(0.5))

    def _take(self, number: int, data: bytes) -> None:
        entry = self._read.get(data)
        if entry is None:
            entry = self._read[data] = read(data)
        self.histories[number].entries.append(entry)
        if isinstance(entry, Moved):
            self.received_s[number][entry.sequence] = time.perf_counter()


def read(data: bytes) -> Moved | Bookmark:
    """A message of the stream."""
    message = pb.WatchVersionsResponse.FromString(data)
    if message.HasField("bookmark"):
        return Bookmark(message.bookmark.sequence)
    moved = message.moved
    whole = is_whole(moved.move, moved.move_digest)
    return Moved(moved.move.sequence, moved.move_digest, from_move(moved.move) if whole else None)


def truth_of(catalog: Catalog, channel: str = "latest") -> dict[int, Moved]:
    """The channel's history as the store has it."""
    head = catalog.head(channel)
    return {move.sequence: Moved(move.sequence, digest, move) for move, digest in catalog.history(head)} if head else {}
