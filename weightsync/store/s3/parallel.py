"""Several requests at once."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, wait
from typing import TypeVar

T = TypeVar("T")


def run_all(pool: Executor, calls: Sequence[Callable[[], T]]) -> list[T]:
    """All results, in order. After the first failure nothing new starts; it is raised once what runs has ended.

    Runs a single call in this thread. Must not be called from within `pool`: its threads would wait for each other.
    """
    if len(calls) == 1:
        return [calls[0]()]
    futures = [pool.submit(call) for call in calls]
    done, rest = wait(futures, return_when=FIRST_EXCEPTION)
    for future in rest:
        future.cancel()
    wait(rest)
    for future in done:
        future.result()
    return [future.result() for future in futures]
