"""A long and narrow link in user space: a TCP proxy that delays what passes, limits its rate, and can go silent.

    with SlowProxy(target=("127.0.0.1", 8333), profile=Profile(rate_bps=100e6, delay_s=0.04)) as proxy:
        connect(proxy.address)
        proxy.cut()      # as a cable that is pulled: connections stand, nothing passes
        proxy.mend()

All connections of a proxy share the link, one queue for each direction, as packets of a real one do.
"""

import asyncio
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

PIECE_BYTES = 16 * 1024
MAX_QUEUED_S = 0.05  # what a router would hold before it pushes back
MAX_QUEUED_PIECES = 1024


@dataclass(frozen=True)
class Profile:
    """A link as it looks from one end. `rate_bps` bits per second each way (None: as the machine), `delay_s` seconds each way."""

    rate_bps: float | None = None
    delay_s: float = 0.0

    def __str__(self) -> str:
        rate = "unlimited" if self.rate_bps is None else f"{self.rate_bps / 1e6:g} Mbit/s"
        return f"{rate}, {2e3 * self.delay_s:g} ms round trip"


class _Direction:
    """When the bytes of one direction leave and arrive."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._free_s = 0.0  # when all that was handed over will have left
        self.bytes = 0

    def arrival_s(self, count: int, now_s: float) -> float:
        """When `count` bytes that are handed over now are at the other end."""
        rate_bps = self._profile.rate_bps
        self._free_s = max(now_s, self._free_s) + (8 * count / rate_bps if rate_bps else 0.0)
        self.bytes += count
        return self._free_s + self._profile.delay_s

    def queued_s(self, now_s: float) -> float:
        """How long it takes until what was handed over has left."""
        return self._free_s - now_s


class SlowProxy:
    """A context manager; runs in a thread of its own. `address` is where it listens, once it is entered."""

    def __init__(self, target: tuple[str, int], profile: Profile, *, listen: str = "127.0.0.1") -> None:
        self._target, self._listen = target, listen
        self._there, self._back = _Direction(profile), _Direction(profile)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="slow-proxy", daemon=True)
        self._open: set[asyncio.Task[None]] = set()
        self._whole = asyncio.Event()
        self._whole.set()
        self._server: asyncio.Server | None = None
        self.address = ("", 0)

    @property
    def passed_bytes(self) -> tuple[int, int]:
        """What went to the target, and what came back."""
        return self._there.bytes, self._back.bytes

    def cut(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self._loop.call_soon_threadsafe(self._whole.clear)

    def mend(self) -> None:
        """What waited passes, and all that follows."""
        self._loop.call_soon_threadsafe(self._whole.set)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._connected, self._listen, 0)
        self.address = self._server.sockets[0].getsockname()[:2]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._open.add(task)
            task.add_done_callback(self._open.discard)
        with suppress(OSError, asyncio.CancelledError):
            await self._whole.wait()
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            try:
                await asyncio.gather(self._pass(reader, far_writer, self._there), self._pass(far_reader, writer, self._back))
            finally:
                far_writer.close()
        writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: _Direction) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_QUEUED_PIECES)
        deliver = asyncio.create_task(self._deliver(queue, writer))
        try:
            while True:
                piece = await reader.read(PIECE_BYTES)
                now_s = self._loop.time()
                await queue.put((direction.arrival_s(len(piece), now_s), piece))
                if not piece:
                    break
                await asyncio.sleep(direction.queued_s(now_s) - MAX_QUEUED_S)
            await deliver
        finally:
            deliver.cancel()

    async def _deliver(self, queue: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter) -> None:
        while True:
            arrival_s, piece = await queue.get()
            await asyncio.sleep(arrival_s - self._loop.time())
            await self._whole.wait()
            if not piece:
                if writer.can_write_eof():
                    writer.write_eof()
                return
            writer.write(piece)
            await writer.drain()
