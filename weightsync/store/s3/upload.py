"""Writing: one PUT, or parts in parallel; always with a checksum that the server compares, if it knows any."""

import hashlib
import zlib
from base64 import b64encode
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from weightsync.clock import Clock
from weightsync.errors import Invalid, Unsupported, WeightsyncError
from weightsync.store.retry import RetryBudget, RetryPolicy, retrying
from weightsync.store.s3.client import Client
from weightsync.store.s3.errors import WrongPlace
from weightsync.store.s3.parallel import run_all

PART_BYTES = 16 << 20
SINGLE_BYTES = 2 * PART_BYTES  # up to here one request is as fast as parts, and needs no second one to commit
MAX_PARTS = 10_000
_SLICE_BYTES = 1 << 20
_IN_MEMORY_BYTES = 1 << 20  # a body given as bytes is sent without first asking "100 Continue"
Checksum = Literal["crc32", "md5"]
Conditions = Mapping[str, str]


class ViewReader:
    """A request's body, handed out in slices of the caller's memory instead of copies."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def __len__(self) -> int:
        return self._view.nbytes

    def read(self, _: int = -1) -> memoryview:
        """The next slice, of our size: the 16 KiB that http.client asks for would cost more than the sending."""
        part = self._view[self._at : self._at + _SLICE_BYTES]
        self._at += part.nbytes
        return part

    def tell(self) -> int:
        """How many bytes were handed out."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Goes to a byte, as `io.IOBase.seek`."""
        self._at = offset + (0, self._at, self._view.nbytes)[whence]
        return self._at


@dataclass
class Uploads:
    """Writes into one bucket. Keys are whole S3 keys.

    `checksum` starts as CRC32 and becomes MD5, which every server knows, when this one refuses the former.
    """

    client: Client
    bucket: str
    pool: Executor
    policy: RetryPolicy
    budget: RetryBudget
    clock: Clock
    checksum: Checksum = field(default="crc32")

    def send(self, key: str, doing: str, view: memoryview, conditions: Conditions) -> str:
        """Writes the object under `conditions` (`IfMatch`, `IfNoneMatch`) and returns its tag.

        The request that makes the object visible is made once. Raises `Conflict` when a condition does not hold, `OutcomeUnknown`.
        """
        one = self._single if view.nbytes <= SINGLE_BYTES else self._multipart
        checksum = self.checksum
        try:
            return one(key, doing, view, conditions, checksum)
        except (Invalid, Unsupported) as refusal:
            if checksum == "md5" or isinstance(refusal, WrongPlace):
                raise
            return self._send_md5(one, (key, doing, view, conditions), refusal)

    def _send_md5(self, one: Any, arguments: tuple[str, str, memoryview, Conditions], refusal: WeightsyncError) -> str:
        try:
            etag: str = one(*arguments, "md5")
        except (Invalid, Unsupported):
            raise refusal from None
        self.checksum = "md5"
        return etag

    def _single(self, key: str, doing: str, view: memoryview, conditions: Conditions, checksum: Checksum) -> str:
        sums = _sums(view, checksum)

        def request(sdk: Any) -> Any:
            return sdk.put_object(Bucket=self.bucket, Key=key, Body=_body(view), ContentLength=view.nbytes, **sums, **conditions)

        return str(self.client.call(request, doing, write=True)["ETag"])

    def _multipart(self, key: str, doing: str, view: memoryview, conditions: Conditions, checksum: Checksum) -> str:
        algorithm = {"ChecksumAlgorithm": "CRC32"} if checksum == "crc32" else {}
        target = {"Bucket": self.bucket, "Key": key}
        target["UploadId"] = self._patiently(lambda sdk: sdk.create_multipart_upload(**target, **algorithm), doing)["UploadId"]
        try:
            size = part_bytes(view.nbytes)
            pieces = [view[p : p + size] for p in range(0, view.nbytes, size)]
            calls = [partial(self._part, target, doing, n, piece, checksum) for n, piece in enumerate(pieces, 1)]
            parts = {"Parts": run_all(self.pool, calls)}
            done = self.client.call(
                lambda sdk: sdk.complete_multipart_upload(**target, MultipartUpload=parts, **conditions), doing, write=True
            )
        except BaseException:
            self._abort(target, doing)
            raise
        return str(done["ETag"])

    def _part(self, target: Mapping[str, str], doing: str, number: int, view: memoryview, checksum: Checksum) -> dict[str, Any]:
        sums = _sums(view, checksum)

        def request(sdk: Any) -> Any:
            return sdk.upload_part(**target, PartNumber=number, Body=ViewReader(view), ContentLength=view.nbytes, **sums)

        etag = self._patiently(request, f"{doing}, part {number}")["ETag"]
        return {"PartNumber": number, "ETag": etag} | {name: value for name, value in sums.items() if name != "ContentMD5"}

    def _abort(self, target: Mapping[str, str], doing: str) -> None:
        try:
            self._patiently(lambda sdk: sdk.abort_multipart_upload(**target), f"{doing}, clearing up")
        except WeightsyncError:
            # The failure that led here matters more; what stays is invisible, and the bucket's lifecycle rule removes it.
            return

    def _patiently(self, request: Any, doing: str) -> Any:
        """A request that may be repeated: nobody sees the upload before it is completed."""
        return retrying(lambda: self.client.call(request, doing), policy=self.policy, clock=self.clock, budget=self.budget)


def part_bytes(size_bytes: int) -> int:
    """The size of all parts but the last, whole MiB, so that there are at most `MAX_PARTS`."""
    mib = 1 << 20
    return max(PART_BYTES, -(-size_bytes // (MAX_PARTS * mib)) * mib)


def _body(view: memoryview) -> bytes | ViewReader:
    return bytes(view) if view.nbytes <= _IN_MEMORY_BYTES else ViewReader(view)


def _sums(view: memoryview, checksum: Checksum) -> dict[str, str]:
    if checksum == "crc32":
        return {"ChecksumCRC32": b64encode(zlib.crc32(view).to_bytes(4, "big")).decode()}
    return {"ContentMD5": b64encode(hashlib.md5(view, usedforsecurity=False).digest()).decode()}
