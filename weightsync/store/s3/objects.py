"""`S3Store`: the `ObjectStore` of a bucket and a prefix."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from weightsync.clock import SYSTEM, Clock
from weightsync.errors import AlreadyExists, Conflict, Corrupt, Invalid, NotFound
from weightsync.store.api import Buffer, Object, ObjectStore, PendingUploads, Stat, Upload
from weightsync.store.keyrules import split_key, split_prefix
from weightsync.store.retry import DEFAULT, RetryBudget, RetryPolicy, retrying
from weightsync.store.s3.client import Client
from weightsync.store.s3.download import Downloads
from weightsync.store.s3.errors import NotModified
from weightsync.store.s3.upload import Uploads

T = TypeVar("T")
PARALLEL = 8


class S3Store:
    """Objects under `prefix` in `bucket`. Credentials come from where boto3 finds them (environment, profile, instance role).

    `endpoint` is for servers other than AWS (also AWS_ENDPOINT_URL), `parallel` the number of requests at once for one large object.
    Threads of the caller come on top. Raises `Invalid` for an unusable endpoint or profile; nothing is sent yet.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | None = None,
        region: str | None = None,
        profile: str | None = None,
        clock: Clock = SYSTEM,
        policy: RetryPolicy = DEFAULT,
        parallel: int = PARALLEL,
    ) -> None:
        if prefix:
            split_key(prefix)
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._policy = policy
        self._clock = clock
        self._budget = RetryBudget()
        self._client = Client(endpoint=endpoint, region=region, profile=profile, clock=clock)
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="weightsync-s3")
        self._down = Downloads(self._client, bucket, self._pool, policy, self._budget, clock)
        self._up = Uploads(self._client, bucket, self._pool, policy, self._budget, clock)

    @property
    def url(self) -> str:
        """Bucket and prefix."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def get(self, key: str, *, max_bytes: int) -> Object:
        """The whole object. Use `read_into` for large ones: this holds a copy."""
        full = self._full(key)
        return self._down.whole(full, self._doing("read", key), max_bytes=max_bytes)

    def get_if_changed(self, key: str, etag: str, *, max_bytes: int) -> Object | None:
        """The whole object, or None while it still has `etag` (answered by a 304)."""
        full = self._full(key)
        try:
            found = self._down.whole(full, self._doing("read", key), max_bytes=max_bytes, unless=etag)
        except NotModified:
            return None
        return None if found.etag == etag else found

    def read_into(self, key: str, into: memoryview, *, start: int = 0) -> None:
        """Fills `into` from `start` on, by ranges in parallel."""
        view = into.cast("B")
        if view.nbytes:
            self._down.into(self._full(key), self._doing("read", key), view, start)
        elif self.stat(key).size_bytes < start:
            raise Corrupt(f"{self._doing('read', key)}: it ends before byte {start}")

    def stat(self, key: str) -> Stat:
        """Size and tag."""
        full = self._full(key)
        found = self._again(lambda sdk: sdk.head_object(Bucket=self._bucket, Key=full), self._doing("look at", key))
        return Stat(key, found["ContentLength"], found["ETag"], found["LastModified"].timestamp())

    def create(self, key: str, data: Buffer) -> str:
        """Writes a new object."""
        full, doing = self._full(key), self._doing("create", key)
        try:
            return self._up.send(full, doing, memoryview(data).cast("B"), {"IfNoneMatch": "*"})
        except Conflict as error:
            raise AlreadyExists(f"{doing}: it exists") from error

    def swap(self, key: str, data: Buffer, etag: str) -> str:
        """Replaces the object if it still has `etag`."""
        full, doing = self._full(key), self._doing("swap", key)
        try:
            return self._up.send(full, doing, memoryview(data).cast("B"), {"IfMatch": etag})
        except NotFound as error:
            raise Conflict(f"{doing}: it is gone", remedy="read it again and decide again") from error

    def put(self, key: str, data: Buffer) -> str:
        """Writes unconditionally; repeats the request, which is harmless."""
        full, doing = self._full(key), self._doing("write", key)
        return self._patiently(lambda: self._up.send(full, doing, memoryview(data).cast("B"), {}), idempotent=True)

    def list(self, prefix: str) -> Iterator[Stat]:
        """Objects whose key starts with `prefix`; leaves out those that are no keys of ours.

        Holds them all before the first is given: some servers list `a/b` before `a-b`.
        """
        split_prefix(prefix)
        return iter(sorted(self._pages(prefix), key=lambda found: found.key))

    def delete(self, key: str) -> None:
        """Removes the object; repeats the request, which is harmless."""
        full, doing = self._full(key), self._doing("delete", key)

        def request() -> None:
            self._client.call(lambda sdk: sdk.delete_object(Bucket=self._bucket, Key=full), doing, write=True)

        try:
            self._patiently(request, idempotent=True)
        except NotFound:  # some servers say so
            return

    def pending_uploads(self, prefix: str) -> Iterator[Upload]:
        """Multipart uploads below `prefix` that were begun and neither completed nor aborted."""
        split_prefix(prefix)
        query = {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
        while True:
            page = self._again(partial(_uploads, query), f"cannot list uploads in {self.url}")
            for entry in page.get("Uploads", ()):
                key = entry["Key"].removeprefix(self._prefix)
                if _is_ours(key):
                    yield Upload(key, entry["UploadId"], entry["Initiated"].timestamp())
            if not page.get("IsTruncated"):
                return
            query |= {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def abort_upload(self, upload: Upload) -> None:
        """Aborts a multipart upload; repeats the request, which is harmless."""
        target = {"Bucket": self._bucket, "Key": self._full(upload.key), "UploadId": upload.upload_id}
        doing = self._doing("abort the upload of", upload.key)
        try:
            self._again(lambda sdk: sdk.abort_multipart_upload(**target), doing)
        except NotFound:
            return

    def close(self) -> None:
        """Ends the threads and closes the connections."""
        self._pool.shutdown(cancel_futures=True)
        self._client.close()

    def _full(self, key: str) -> str:
        split_key(key)
        return self._prefix + key

    def _doing(self, verb: str, key: str) -> str:
        return f"cannot {verb} object {key!r} in {self.url}"

    def _again(self, request: Callable[[Any], Any], doing: str) -> Any:
        return self._patiently(lambda: self._client.call(request, doing))

    def _patiently(self, call: Callable[[], T], *, idempotent: bool = False) -> T:
        return retrying(call, policy=self._policy, clock=self._clock, budget=self._budget, idempotent=idempotent)

    def _pages(self, prefix: str) -> Iterator[Stat]:
        query = {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
        while True:
            page = self._again(lambda sdk: sdk.list_objects_v2(**query), f"cannot list {self.url}")
            for entry in page.get("Contents", ()):
                key = entry["Key"].removeprefix(self._prefix)
                if _is_ours(key):
                    yield Stat(key, entry["Size"], entry["ETag"], entry["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            query["ContinuationToken"] = page["NextContinuationToken"]


def _uploads(query: dict[str, str], sdk: Any) -> Any:
    return sdk.list_multipart_uploads(**query)


def _is_ours(key: str) -> bool:
    try:
        split_key(key)
    except Invalid:
        return False
    return True


if TYPE_CHECKING:
    _conforms: type[ObjectStore] = S3Store
    _conforms_too: type[PendingUploads] = S3Store
