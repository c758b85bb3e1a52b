"""A clock that moves only when told to, or when somebody sleeps on it."""

import threading
from typing import TYPE_CHECKING

from weightsync.errors import Invalid

if TYPE_CHECKING:
    from weightsync.clock import Clock


class ManualClock:
    """`Clock` for tests: sleeping advances it at once. Safe to use from many threads.

    `sleeps_s` lists every sleep asked for, in order.
    """

    def __init__(self, now_s: float = 1_700_000_000.0) -> None:
        self._lock = threading.Lock()
        self._now_s = now_s
        self._monotonic_s = 0.0
        self.sleeps_s: list[float] = []

    def now_s(self) -> float:
        """UNIX time in seconds, as set."""
        with self._lock:
            return self._now_s

    def monotonic_s(self) -> float:
        """Seconds advanced since the clock was made; not moved by `jump`."""
        with self._lock:
            return self._monotonic_s

    def sleep_s(self, seconds: float) -> None:
        """Notes the sleep and advances by it."""
        with self._lock:
            self.sleeps_s.append(seconds)
        self.advance(max(seconds, 0.0))

    def advance(self, seconds: float) -> None:
        """Lets `seconds` pass."""
        if seconds < 0:
            raise Invalid(f"time cannot pass by {seconds} s", remedy="use jump() to set the wall clock back")
        with self._lock:
            self._now_s += seconds
            self._monotonic_s += seconds

    def jump(self, seconds: float) -> None:
        """Sets the wall clock forward or back, as an administrator or NTP does."""
        with self._lock:
            self._now_s += seconds


if TYPE_CHECKING:
    _conforms: type[Clock] = ManualClock
