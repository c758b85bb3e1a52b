"""Objects to the store, several at once, with a bound on the bytes that wait."""

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self

from weightsync.clock import SYSTEM, Clock
from weightsync.errors import AlreadyExists
from weightsync.failpoints import failpoint
from weightsync.store.api import Buffer, ObjectStore
from weightsync.store.retry import DEFAULT, RetryPolicy
from weightsync.store.settle import ensure

logger = logging.getLogger(__name__)

WINDOW_BYTES = 128 << 20  # of objects handed over and not yet acknowledged
CONNECTIONS = 8


class Uploader:
    """Used as a context: leaving it waits for what is on its way, and cancels what has not begun if an exception passes.

    `uploaded` counts acknowledged bytes by kind (shards, digests, layout, files, records).
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        connections: int = CONNECTIONS,
        window_bytes: int = WINDOW_BYTES,
        patience: RetryPolicy = DEFAULT,
        clock: Clock = SYSTEM,
    ) -> None:
        self._store, self._patience, self._clock = store, patience, clock
        self._window_bytes = window_bytes
        self._pool = ThreadPoolExecutor(connections, thread_name_prefix="weightsync-upload")
        self._changed = threading.Condition()
        self._waiting_bytes = 0
        self._failure: BaseException | None = None
        self._futures: list[Future[None]] = []
        self.uploaded: Counter[str] = Counter()

    def add(self, kind: str, key: str, data: Buffer) -> None:
        """Uploads in the background; blocks while too much waits. Raises the first failure of any earlier one.

        All kinds but `records` lie under keys made of their digest.
        """
        nbytes = len(data)
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not self._waiting_bytes or self._waiting_bytes + nbytes <= self._window_bytes)
            if self._failure:
                raise self._failure
            self._waiting_bytes += nbytes
        self._futures = [future for future in self._futures if not future.done()]
        self._futures.append(self._pool.submit(self._upload, kind, key, data))

    def drain(self) -> None:
        """Returns when everything handed over is in the store. Raises the first failure."""
        wait(self._futures)
        if self._failure:
            raise self._failure

    def _upload(self, kind: str, key: str, data: Buffer) -> None:
        failure: BaseException | None = None
        try:
            if kind == "shards":
                failpoint("publish.before_shard")
            self._ensure(kind, key, data)
            if kind == "shards":
                failpoint("publish.after_shard")
        except BaseException as error:
            failure = error
            raise
        finally:
            with self._changed:
                self._waiting_bytes -= len(data)
                self._failure = self._failure or failure
                if failure is None:
                    self.uploaded[kind] += len(data)
                self._changed.notify_all()

    def _ensure(self, kind: str, key: str, data: Buffer) -> None:
        try:
            ensure(self._store, key, data, policy=self._patience, clock=self._clock)
        except AlreadyExists:
            if kind == "records":
                raise
            # What stands under the digest of other bytes was torn or rotted, and nobody can read it: the right bytes may replace it.
            logger.warning("object %r in %s was damaged and is written again", key, self._store.url)
            self._store.put(key, data)
            ensure(self._store, key, data, policy=self._patience, clock=self._clock)

    def totals(self) -> Mapping[str, int]:
        """Bytes in the store by kind."""
        with self._changed:
            return dict(self.uploaded)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
