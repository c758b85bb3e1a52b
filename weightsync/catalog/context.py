"""What every part of the catalog works with: one run in one store, whose keys to trust, time and randomness."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from weightsync.catalog.heads import HeadWriter
from weightsync.clock import SYSTEM, Clock, jitter, new_write_id
from weightsync.format.keys import RunKeys
from weightsync.store.api import ObjectStore
from weightsync.store.retry import Backoff, RetryPolicy, retrying
from weightsync.store.settle import ensure
from weightsync.trust import UNSIGNED, Policy

T = TypeVar("T")
PATIENCE = RetryPolicy()


@dataclass(frozen=True)
class Context:
    """One run in one store. `heads` writes head objects in the way that this store allows."""

    store: ObjectStore
    keys: RunKeys
    heads: HeadWriter
    policy: Policy = UNSIGNED
    clock: Clock = SYSTEM
    new_id: Callable[[], str] = new_write_id
    jitter: Callable[[float], float] = jitter
    patience: RetryPolicy = PATIENCE

    @property
    def run(self) -> str:
        """The run's name."""
        return self.keys.run

    def now_ms(self) -> int:
        """UNIX time in milliseconds, for stamps."""
        return int(self.clock.now_s() * 1000)

    def name(self, key: str) -> str:
        """An object, for messages."""
        return f"{key!r} in {self.store.url}"

    def backoff(self, policy: RetryPolicy | None = None) -> Backoff:
        """The waits of one operation."""
        return Backoff(policy or self.patience, clock=self.clock, jitter=self.jitter)

    def retrying(self, call: Callable[[], T]) -> T:
        """`call`, made again while the store is unavailable. For reads that settle what was written."""
        return retrying(call, policy=self.patience, clock=self.clock, jitter=self.jitter)

    def ensure(self, key: str, data: bytes) -> None:
        """Creates an object until it stands. Raises `AlreadyExists` when other bytes do."""
        ensure(self.store, key, data, policy=self.patience, clock=self.clock, jitter=self.jitter)
