"""Work on many items by threads, results in order, only a few of them in memory at once."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(function: Callable[[Item], Result], items: Iterable[Item], *, threads: int, window: int) -> Generator[Result, None, None]:
    """`function` of each item, in order; at most `window` results are computed ahead of the consumer.

    An exception of `function` comes out in its place. When the iterator ends or is closed, no call is running any more. One thread is
    the caller's own.
    """
    if threads == 1:
        yield from map(function, items)
        return
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="weightsync-diff") as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) >= window:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
            wait(pending)
