"""What is worth another attempt, when, and how often.

Full jitter (every wait is uniform between nothing and an exponentially growing bound), a deadline, and a budget shared by all operations
of a store, so that an overloaded store is not held down by retries. stamina and tenacity take neither our clock nor a budget, and wait
behind a global switch in tests; this is shorter than adapting them.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from weightsync.clock import SYSTEM, Clock, jitter
from weightsync.errors import Denied, NoSpace, OutcomeUnknown, Unavailable, WeightsyncError

T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """How patient an operation is. The first wait is below `base_s`; bounds double up to `cap_s`."""

    attempts: int = 8
    deadline_s: float = 120.0
    base_s: float = 0.1
    cap_s: float = 10.0


DEFAULT = RetryPolicy()


class Throttled(Unavailable):
    """The store asks for patience: wait at least `retry_after_s` before the next attempt."""

    def __init__(self, message: str, *, remedy: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after_s = retry_after_s


class RetryBudget:
    """Retries allowed for all operations together: `burst` at once, and `ratio` for every success after that. Thread-safe.

    With 0.5 a store that fails 30 % of all requests is still used at full speed (0.43 retries a success), while one that is down sees no
    more than `burst` retries.
    """

    def __init__(self, *, ratio: float = 0.5, burst: int = 50) -> None:
        self._ratio = ratio
        self._burst = float(burst)
        self._left = float(burst)
        self._lock = threading.Lock()

    def succeeded(self) -> None:
        """Earns a part of a retry."""
        with self._lock:
            self._left = min(self._burst, self._left + self._ratio)

    def spend(self) -> bool:
        """Takes a retry; False when there is none left."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True


def is_retryable(error: WeightsyncError, *, idempotent: bool = False) -> bool:
    """Whether the same call may be made again as it is.

    Not for what waiting does not mend (`Denied`, `NoSpace`), nor after `OutcomeUnknown` (read back first), unless it is `idempotent`.
    """
    final = (Denied, NoSpace) if idempotent else (Denied, NoSpace, OutcomeUnknown)
    return isinstance(error, Unavailable) and not isinstance(error, final)


class Backoff:
    """The waits of one operation: `wait(error)` before each new attempt."""

    def __init__(
        self,
        policy: RetryPolicy = DEFAULT,
        *,
        clock: Clock = SYSTEM,
        jitter: Callable[[float], float] = jitter,
        budget: RetryBudget | None = None,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._jitter = jitter
        self._budget = budget
        self._deadline_s = clock.monotonic_s() + policy.deadline_s
        self._failures = 0

    def wait(self, error: WeightsyncError) -> None:
        """Sleeps before the next attempt. Raises `error` when there is to be none: attempts, time or budget are used up."""
        self._failures += 1
        bound_s = min(self._policy.cap_s, self._policy.base_s * 2.0 ** (self._failures - 1))
        wait_s = max(self._jitter(bound_s), getattr(error, "retry_after_s", 0.0))
        late = self._clock.monotonic_s() + wait_s > self._deadline_s
        if self._failures >= self._policy.attempts or late or (self._budget is not None and not self._budget.spend()):
            raise error
        self._clock.sleep_s(wait_s)

    def progressed(self) -> None:
        """The last attempt got a part of the work done: the next failure counts as the first, with a deadline of its own."""
        self._failures = 0
        self._deadline_s = self._clock.monotonic_s() + self._policy.deadline_s


def retrying(
    call: Callable[[], T],
    *,
    policy: RetryPolicy = DEFAULT,
    clock: Clock = SYSTEM,
    jitter: Callable[[float], float] = jitter,
    budget: RetryBudget | None = None,
    idempotent: bool = False,
) -> T:
    """The result of `call`, made again while it raises what `is_retryable` says. Raises its last error, or its first final one."""
    backoff = Backoff(policy, clock=clock, jitter=jitter, budget=budget)
    while True:
        try:
            result = call()
        except Unavailable as error:
            if not is_retryable(error, idempotent=idempotent):
                raise
            backoff.wait(error)
        else:
            if budget is not None:
                budget.succeeded()
            return result
