"""Reading: whole objects and ranges, in parallel, resumed where a body breaks off."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from weightsync.clock import Clock
from weightsync.errors import Conflict, Corrupt, Unavailable, Unsupported
from weightsync.store.api import Object
from weightsync.store.retry import Backoff, RetryBudget, RetryPolicy, is_retryable, retrying
from weightsync.store.s3.client import Client
from weightsync.store.s3.errors import BODY_ERRORS
from weightsync.store.s3.parallel import run_all

T = TypeVar("T")
RANGE_BYTES = 32 << 20
_SLICE_BYTES = 256 << 10
# A body that is slower than this after that time is given up, so that a hostile or broken server cannot hold a reader for ever.
SLOW_AFTER_S = 30.0
SLOW_BYTES_PER_S = 1024
_PROGRESS_BYTES = 64 << 10  # a connection that gave this much was worth opening


class Changed(Unavailable):
    """The object was replaced while parts of it were read."""


@dataclass(frozen=True)
class Downloads:
    """Reads of one bucket. Keys are whole S3 keys."""

    client: Client
    bucket: str
    pool: Executor
    policy: RetryPolicy
    budget: RetryBudget
    clock: Clock

    def whole(self, key: str, doing: str, *, max_bytes: int, unless: str = "") -> Object:
        """The object. Raises `NotModified` while its tag is `unless`, `Corrupt` when it is larger than `max_bytes`."""
        return self._unchanged(lambda: self._whole(key, doing, max_bytes, unless))

    def into(self, key: str, doing: str, view: memoryview, start: int) -> None:
        """Fills `view` (not empty) from byte `start` on."""
        self._unchanged(lambda: self._into(key, doing, view, start, ""))

    def _unchanged(self, read: Callable[[], T]) -> T:
        for _ in range(2):
            try:
                return read()
            except Changed:
                continue
        return read()

    def _whole(self, key: str, doing: str, max_bytes: int, unless: str) -> Object:
        query = {"IfNoneMatch": unless} if unless else {}
        response = retrying(lambda: self._open(key, doing, query), policy=self.policy, clock=self.clock, budget=self.budget)
        size_bytes, etag = response["ContentLength"], response["ETag"]
        if size_bytes > max_bytes:
            response["Body"].close()
            raise Corrupt(f"{doing}: it has {size_bytes} bytes, more than the {max_bytes} allowed")
        data = memoryview(bytearray(size_bytes))
        head = min(size_bytes, RANGE_BYTES)
        done = self._drain(response, data[:head])
        if done < size_bytes:
            self._into(key, doing, data[done:], done, etag)
        return Object(bytes(data), etag)

    def _into(self, key: str, doing: str, view: memoryview, start: int, etag: str) -> None:
        pieces = [(view[p : p + RANGE_BYTES], start + p) for p in range(0, view.nbytes, RANGE_BYTES)]
        tags = run_all(self.pool, [partial(self._fill, key, doing, piece, at, etag) for piece, at in pieces])
        if len(set(tags)) > 1:
            raise Changed(f"{doing}: it was replaced while it was read", remedy="retry")

    def _fill(self, key: str, doing: str, view: memoryview, start: int, etag: str) -> str:
        """One range, by as many requests as it takes; returns the object's tag."""
        done = 0
        backoff = Backoff(self.policy, clock=self.clock, budget=self.budget)
        while True:
            before = done
            try:
                response = self._open_range(key, doing, start + done, view.nbytes - done, etag)
                etag = response["ETag"]
                done += self._drain(response, view[done:])
                if done == view.nbytes:
                    self.budget.succeeded()
                    return etag
                failure = Unavailable(f"{doing}: the body broke off after {done} of {view.nbytes} bytes", remedy="retry")
            except Changed:
                raise
            except Unavailable as error:
                if not is_retryable(error):
                    raise
                failure = error
            except Conflict as error:
                raise Changed(f"{doing}: it was replaced while it was read", remedy="retry") from error
            if done - before >= _PROGRESS_BYTES:
                backoff.progressed()
            backoff.wait(failure)

    def _open(self, key: str, doing: str, query: Mapping[str, str]) -> Any:
        response: Any = self.client.call(lambda sdk: sdk.get_object(Bucket=self.bucket, Key=key, **query), doing)
        if "ContentLength" not in response or "ETag" not in response:
            response["Body"].close()
            raise Unavailable(f"{doing}: the answer has no length or no ETag", remedy="check proxies on the way")
        return response

    def _open_range(self, key: str, doing: str, start: int, count: int, etag: str) -> Any:
        """A response whose body is exactly that range, as far as its headers say."""
        query = {"Range": f"bytes={start}-{start + count - 1}"} | ({"IfMatch": etag} if etag else {})
        response = self._open(key, doing, query)
        problem = _mismatch(response, start, count, doing)
        if etag not in ("", response["ETag"]):  # a server that ignores If-Match
            problem = Changed(f"{doing}: it was replaced while it was read", remedy="retry")
        if problem is not None:
            response["Body"].close()
            raise problem
        return response

    def _drain(self, response: Any, view: memoryview) -> int:
        """Fills `view` from the body; returns how far it came before the body broke off or became too slow, at most the view's length."""
        done = 0
        start_s = self.clock.monotonic_s()
        try:
            # urllib3's response gives what has arrived; botocore's waits for all that was asked for, at whatever pace.
            with response["Body"] as body:
                while done < view.nbytes:
                    part = body.read1(min(_SLICE_BYTES, view.nbytes - done))
                    view[done : done + len(part)] = part
                    done += len(part)
                    took_s = self.clock.monotonic_s() - start_s
                    if not part or (took_s > SLOW_AFTER_S and done < took_s * SLOW_BYTES_PER_S):
                        break
        except BODY_ERRORS:
            pass  # the caller goes on from where this one broke off
        return done


def _mismatch(response: Mapping[str, Any], start: int, count: int, doing: str) -> Exception | None:
    """What is wrong with the answer to a request for a range."""
    length = response["ContentLength"]
    content_range = response.get("ContentRange")
    if content_range is None:
        if start == 0 and length == count:
            return None
        if start == 0 and length < count:
            return Corrupt(f"{doing}: it ends at byte {length}, before {count}")
        return Unsupported(f"{doing}: the server does not serve ranges", remedy="use another store")
    span, _, total = content_range.removeprefix("bytes ").partition("/")
    if span == f"{start}-{start + count - 1}" and length == count:
        return None
    if total.isdecimal() and int(total) < start + count:
        return Corrupt(f"{doing}: it ends at byte {total}, before {start + count}")
    return Unavailable(f"{doing}: the server answered range {span} for {start}-{start + count - 1}", remedy="check proxies on the way")
