"""One engine among those that are changed together: calls run in a thread of its own, and none is waited for longer than its time."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from weightsync.engine.api import Engine
from weightsync.errors import Dirty, WeightsyncError
from weightsync.format.refs import VersionRef

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Seat:
    """`engine` under a `name`. An adapter is for one thread: this one; where it hangs, everything else is refused."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name, self.engine = name, engine
        self.dirty = ""  # why it must not serve; empty: nothing is wrong
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._running: Future[Any] | None = None
        threading.Thread(target=self._work, name=f"weightsync-{name}", daemon=True).start()

    def submit(self, call: Callable[[], T]) -> "Future[T]":
        """Runs `call` in the engine's thread. Fails with `Dirty` while an earlier call hangs."""
        future: Future[T] = Future()
        if self.hangs:
            future.set_exception(Dirty(f"engine {self.name} does not come back from an earlier call", remedy="restart it"))
            return future
        self._running = future
        self._calls.put((future, call))
        return future

    @property
    def hangs(self) -> bool:
        """Whether a call is still out."""
        return self._running is not None and not self._running.done()

    def version(self) -> VersionRef | None:
        """What the engine says that it serves."""
        return self.engine.version

    def withdraw(self, reason: str, limit_s: float) -> None:
        """Takes it out of service, from another thread if its own hangs; a failure is logged, since there is nothing more to do."""
        self.dirty = reason
        call = partial(self.engine.withdraw, reason)
        future = _elsewhere(call) if self.hangs else self.submit(call)
        wait([future], limit_s)
        error = future.exception() if future.done() else None
        if error is not None or not future.done():
            _log.error("engine %s could not be withdrawn (%s): keep traffic away from it", self.name, error or "it does not answer")

    def close(self) -> None:
        """Lets the engine go."""
        if not self.hangs:
            wait([self.submit(self.engine.close)], 10.0)
        self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            _run(*item)


def each(calls: Mapping[Seat, Callable[[], T]], limit_s: float) -> tuple[dict[Seat, T], dict[Seat, WeightsyncError]]:
    """Runs one call per seat, all at once; results, and errors. What is out after `limit_s`, or fails in no known way, is `Dirty`."""
    futures = {seat: seat.submit(call) for seat, call in calls.items()}
    wait(futures.values(), limit_s)
    found: dict[Seat, T] = {}
    errors: dict[Seat, WeightsyncError] = {}
    for seat, future in futures.items():
        if not future.done():
            errors[seat] = Dirty(f"engine {seat.name} did not come back within {limit_s:g} s", remedy="restart it")
            continue
        error = future.exception()
        if error is None:
            found[seat] = future.result()
        elif isinstance(error, WeightsyncError):
            errors[seat] = error
        else:
            _log.error("engine %s failed unexpectedly", seat.name, exc_info=error)
            errors[seat] = Dirty(f"engine {seat.name} failed unexpectedly: {error!r}", remedy="restart it, and report this")
    return found, errors


def _elsewhere(call: Callable[[], T]) -> "Future[T]":
    future: Future[T] = Future()
    threading.Thread(target=_run, args=(future, call), daemon=True).start()
    return future


def _run(future: "Future[T]", call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001  handed to whoever waits for the result
        future.set_exception(error)
