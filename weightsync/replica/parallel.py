"""Work spread over threads: hashing, decoding and copying run outside the interpreter's lock."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from weightsync.format.layout import Layout

T = TypeVar("T")
R = TypeVar("R")

BATCH_BYTES = 16 << 20  # of chunks handled by one task: milliseconds of work, so that neither scheduling nor the tail counts
BATCH_CHUNKS = 512


class Workers:
    """A pool of `threads`; with one thread everything runs in the caller's, which costs no hand-over."""

    def __init__(self, threads: int) -> None:
        self.threads = max(1, threads)
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="replica") if self.threads > 1 else None

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """`work` of each item, in order. After an error nothing new is started, and what runs is waited for before it is raised."""
        if self._pool is None:
            yield from map(work, items)
            return
        pending: list[Future[R]] = [self._pool.submit(work, item) for item in items]
        try:
            for future in pending:
                yield future.result()
        finally:
            for future in pending:
                future.cancel()
            for future in pending:
                if not future.cancelled():
                    future.exception()

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown()


def batches(layout: Layout) -> Iterator[range]:
    """All chunk numbers of a layout in runs of bounded size."""
    start = nbytes = 0
    for chunk in layout.chunks:
        nbytes += chunk.nbytes
        if nbytes >= BATCH_BYTES or chunk.number + 1 - start >= BATCH_CHUNKS:
            yield range(start, chunk.number + 1)
            start, nbytes = chunk.number + 1, 0
    if start < len(layout.chunks):
        yield range(start, len(layout.chunks))
