"""Time and randomness; the only module that may ask the machine for either.

Everything that waits, measures or stamps takes a `Clock`, so that a test can hand in `weightsync.testing.clock.ManualClock`.
"""

import random
import secrets
import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now_s(self) -> float:
        """UNIX time in seconds. May jump: only for stamps and expiry, never to order events."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def sleep_s(self, seconds: float) -> None:
        """Waits for `seconds`; returns at once when they are not positive."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_s(self) -> float:
        """UNIX time in seconds."""
        return time.time()

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start."""
        return time.perf_counter()

    def sleep_s(self, seconds: float) -> None:
        """Blocks this thread for `seconds`."""
        if seconds > 0:
            time.sleep(seconds)


SYSTEM: Clock = SystemClock()


def new_write_id() -> str:
    """16 hex characters that nobody else will draw: they tell our own write from another's after a lost reply."""
    return secrets.token_hex(8)


def jitter(upper_s: float) -> float:
    """A uniformly random wait in [0, `upper_s`) seconds ("full jitter"), so that many hosts do not retry in step."""
    return random.random() * upper_s
