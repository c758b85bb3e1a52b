"""A server in a thread of its own, for programs that are not built on asyncio, and for tests."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from weightsync.control.server import ControlServer
from weightsync.errors import Unavailable

START_S = 30.0


@contextmanager
def serving(make: Callable[[], ControlServer]) -> Iterator[str]:
    """Runs what `make` returns (called on the loop's thread) while the block runs; gives HOST:PORT. Drains at the end."""
    started, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    outcome: list[str | Exception] = []

    async def run() -> None:
        try:
            server = make()
            outcome.append(await server.start())
        except Exception as error:  # noqa: BLE001  handed to the other thread
            outcome.append(error)
            return
        finally:
            started.set()
        await stop.wait()
        await server.stop()

    thread = threading.Thread(target=_drive, args=(loop, run), name="control-plane", daemon=True)
    thread.start()
    try:
        if not started.wait(START_S):
            raise Unavailable("the server does not start", remedy="is the machine overloaded?")
        first = outcome[0]
        if isinstance(first, Exception):
            raise first
        yield first
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        thread.join(START_S)


def _drive(loop: asyncio.AbstractEventLoop, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
