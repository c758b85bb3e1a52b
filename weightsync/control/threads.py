"""Blocking work of an event loop, on a bounded number of threads with a bounded queue."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from weightsync.errors import Unavailable

T = TypeVar("T")
P = ParamSpec("P")


class Threads:
    """For one event loop. More than `threads` + `waiting` calls at once are refused."""

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most = threads + waiting
        self._busy = 0

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `function` returns or raises. `Unavailable` when too many calls wait.

        A caller that is cancelled leaves; the call itself runs to its end and counts until then.
        """
        if self._busy >= self._most:
            raise Unavailable("the control plane has too many calls at once", remedy="retry later, or ask another server")
        loop = asyncio.get_running_loop()
        future = self._pool.submit(function, *args, **kwargs)
        self._busy += 1
        future.add_done_callback(lambda _: _soon(loop, self._done))
        return await asyncio.wrap_future(future)

    def _done(self) -> None:
        self._busy -= 1

    def close(self) -> None:
        """Starts nothing new; does not wait for what runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _soon(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function)
