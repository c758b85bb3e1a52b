"""A daemon's end: the first SIGTERM or Ctrl-C lets it finish what it does, a second Ctrl-C interrupts it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from weightsync.daemon.bell import Bell


@contextmanager
def stop_event() -> Iterator[Bell]:
    """What SIGTERM and SIGINT end while the block runs."""
    stop = Bell()

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.end()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM unwinds the stack as Ctrl-C does while the block runs, so that everything is cleaned up."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
