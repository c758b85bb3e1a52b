"""What every storage backend offers: a flat map from keys to immutable byte strings, with conditional writes.

Keys are `/`-separated ASCII as made by `weightsync.format.keys`; a backend may trust that they contain no `..`, no empty segment and no
leading slash, and refuses others with `Invalid`. All methods block, are safe to call from many threads, and raise only the errors of
`weightsync.errors`: `Unavailable` (retry), `OutcomeUnknown` (a write may have been applied), `Denied`, `NoSpace`, `NotFound`,
`AlreadyExists` (create), `Conflict` (swap), `Corrupt` (an answer that contradicts itself), `Invalid`.
Backends retry reads themselves (`store.retry`); they never retry a conditional write: the caller reads back first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Object:
    """An object's bytes and the tag to swap it by."""

    data: bytes
    etag: str


@dataclass(frozen=True)
class Stat:
    """What a listing or a HEAD says of an object."""

    key: str
    size_bytes: int
    etag: str
    modified_s: float  # UNIX time by the store's clock; only ever used to wait longer, never to decide an order


class ObjectStore(Protocol):
    """A store root. See the module's docstring for the errors."""

    @property
    def url(self) -> str:
        """Where this is, without secrets; for messages."""
        ...

    def get(self, key: str, *, max_bytes: int) -> Object:
        """The whole object. Raises `NotFound`; `Corrupt` when it is larger than `max_bytes`, having read no more than that."""
        ...

    def get_if_changed(self, key: str, etag: str, *, max_bytes: int) -> Object | None:
        """As `get`; None while the object still has `etag`."""
        ...

    def read_into(self, key: str, into: memoryview, *, start: int = 0) -> None:
        """Fills `into` with the bytes from `start` on; broken bodies are resumed. Raises `Corrupt` when the object ends before that."""
        ...

    def stat(self, key: str) -> Stat:
        """Size and tag. Raises `NotFound`."""
        ...

    def create(self, key: str, data: Buffer) -> str:
        """Writes a new object, whole or not at all, and returns its etag. Raises `AlreadyExists`, `OutcomeUnknown`."""
        ...

    def swap(self, key: str, data: Buffer, etag: str) -> str:
        """Replaces the object if it still has `etag`. Raises `Conflict` (changed or gone), `OutcomeUnknown`."""
        ...

    def put(self, key: str, data: Buffer) -> str:
        """Writes unconditionally. Only for expiring claims, probes and single-writer stores."""
        ...

    def list(self, prefix: str) -> Iterator[Stat]:
        """Objects whose key starts with `prefix`, in key order. May miss recent writes: never decide correctness by it."""
        ...

    def delete(self, key: str) -> None:
        """Removes the object; a missing one is fine."""
        ...

    def close(self) -> None:
        """Frees connections and threads."""
        ...


@dataclass(frozen=True)
class Upload:
    """An object being written in parts, which nobody sees yet. `begun_s`: UNIX time by the store's clock."""

    key: str
    upload_id: str
    begun_s: float


@runtime_checkable
class PendingUploads(Protocol):
    """What a store offers besides that writes large objects in parts and keeps those of writers that died."""

    def pending_uploads(self, prefix: str) -> Iterator[Upload]:
        """Uploads of keys that start with `prefix`, begun and neither completed nor aborted."""
        ...

    def abort_upload(self, upload: Upload) -> None:
        """Gives its parts up; one that is gone is fine."""
        ...
