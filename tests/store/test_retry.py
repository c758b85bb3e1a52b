from collections.abc import Callable

import pytest

from weightsync.errors import Conflict, Corrupt, Denied, NoSpace, NotFound, OutcomeUnknown, Unavailable, WeightsyncError
from weightsync.store.retry import Backoff, RetryBudget, RetryPolicy, Throttled, retrying
from weightsync.testing.clock import ManualClock


def longest(upper_s: float) -> float:
    return upper_s


def failing(times: int, error: WeightsyncError) -> Callable[[], int]:
    calls = 0

    def call() -> int:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise error
        return calls

    return call


def test_waits_grow_up_to_the_cap() -> None:
    clock = ManualClock()
    policy = RetryPolicy(attempts=8, base_s=0.1, cap_s=1.0)
    assert retrying(failing(6, Unavailable("x")), policy=policy, clock=clock, jitter=longest) == 7
    assert clock.sleeps_s == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_waits_are_full_jitter() -> None:
    clock = ManualClock()
    retrying(failing(3, Unavailable("x")), clock=clock, jitter=lambda upper: upper * 0.25)
    assert clock.sleeps_s == pytest.approx([0.025, 0.05, 0.1])


def test_attempts_end() -> None:
    clock = ManualClock()
    with pytest.raises(Unavailable, match="the last"):
        retrying(failing(99, Unavailable("the last")), policy=RetryPolicy(attempts=3), clock=clock)
    assert len(clock.sleeps_s) == 2


def test_the_deadline_ends_it_before_the_wait() -> None:
    clock = ManualClock()
    policy = RetryPolicy(attempts=99, deadline_s=5.0, base_s=1.0, cap_s=2.0)
    with pytest.raises(Unavailable):
        retrying(failing(99, Unavailable("x")), policy=policy, clock=clock, jitter=longest)
    assert sum(clock.sleeps_s) <= 5.0


def test_retry_after_is_honoured_unless_it_is_too_long() -> None:
    clock = ManualClock()
    retrying(failing(1, Throttled("x", retry_after_s=33)), clock=clock)
    assert clock.sleeps_s == [33]
    with pytest.raises(Throttled):
        retrying(failing(1, Throttled("x", retry_after_s=999)), clock=clock)
    assert clock.sleeps_s == [33]


@pytest.mark.parametrize("error", [Denied("x"), NoSpace("x"), OutcomeUnknown("x"), Corrupt("x"), NotFound("x"), Conflict("x")])
def test_final_errors_are_raised_at_once(error: WeightsyncError) -> None:
    clock = ManualClock()
    with pytest.raises(type(error)):
        retrying(failing(1, error), clock=clock)
    assert clock.sleeps_s == []


def test_idempotent_calls_outlive_lost_replies() -> None:
    assert retrying(failing(2, OutcomeUnknown("x")), clock=ManualClock(), idempotent=True) == 3
    with pytest.raises(Denied):
        retrying(failing(1, Denied("x")), clock=ManualClock(), idempotent=True)


def test_the_budget_bounds_retries_of_a_store_that_is_down() -> None:
    budget = RetryBudget(ratio=0.5, burst=10)
    clock = ManualClock()
    for _ in range(20):
        with pytest.raises(Unavailable):
            retrying(failing(99, Unavailable("x")), clock=clock, budget=budget)
    assert len(clock.sleeps_s) == 10


def test_successes_earn_retries() -> None:
    budget = RetryBudget(ratio=0.5, burst=10)
    for _ in range(200):  # every second operation fails once: as much as is earned
        retrying(failing(0, Unavailable("x")), clock=ManualClock(), budget=budget)
        retrying(failing(1, Unavailable("x")), clock=ManualClock(), budget=budget)


def test_progress_starts_the_count_anew() -> None:
    clock = ManualClock()
    backoff = Backoff(RetryPolicy(attempts=2, base_s=1.0), clock=clock, jitter=longest)
    for _ in range(5):
        backoff.progressed()
        backoff.wait(Unavailable("x"))
    assert clock.sleeps_s == [1.0] * 5
    with pytest.raises(Unavailable):
        backoff.wait(Unavailable("x"))
