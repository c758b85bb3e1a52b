"""Writing a head object: by conditional writes, or, where the store has none and the caller vouches to be alone, by plain ones."""

import logging
from typing import Protocol

from weightsync.errors import Conflict, NotFound, OutcomeUnknown, Unsupported
from weightsync.format.limits import MAX_RECORD_BYTES
from weightsync.store.api import ObjectStore
from weightsync.store.probe import Capability, probe

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 2 * MAX_RECORD_BYTES + 1  # a move, a line feed, a renewal


class HeadWriter(Protocol):
    """Replaces a head object if it is still the one that was read."""

    def write(self, key: str, data: bytes, etag: str | None) -> str:
        """The new etag. `etag` None: there was none. Raises `Conflict`, `OutcomeUnknown`, `Unavailable`."""
        ...


class Conditional:
    """`If-None-Match` and `If-Match`. The store is probed before the first write; without both kinds nothing is written."""

    def __init__(self, store: ObjectStore, probe_prefix: str, capability: Capability | None = None) -> None:
        self._store = store
        self._prefix = probe_prefix
        self._capability = capability

    def write(self, key: str, data: bytes, etag: str | None) -> str:
        """Creates or swaps."""
        if self._capability is None:
            self._capability = probe(self._store, self._prefix)
        if self._capability != "full":
            raise Unsupported(
                f"{self._store.url} does not honour conditional writes (probed: {self._capability}): two publishers could fork the run",
                remedy="use another store, or --single-writer if nobody else ever writes to this run",
            )
        return self._store.create(key, data) if etag is None else self._store.swap(key, data, etag)


class SingleWriter:
    """Look, put, look again. Notices another writer only by luck: the caller promises that there is none."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        logger.warning("single-writer mode: heads in %s are written unconditionally; a second writer would fork the run", store.url)

    def write(self, key: str, data: bytes, etag: str | None) -> str:
        """Puts `data` if the head looks as expected, and reads it back."""
        if self._etag(key) != etag:
            raise Conflict(f"object {key!r} in {self._store.url} has changed", remedy="read it again and decide again")
        self._store.put(key, data)
        found = self._store.get(key, max_bytes=MAX_HEAD_BYTES)
        if found.data != data:
            raise OutcomeUnknown(f"object {key!r} in {self._store.url} does not hold what was written", remedy="look for another writer")
        return found.etag

    def _etag(self, key: str) -> str | None:
        try:
            return self._store.get(key, max_bytes=MAX_HEAD_BYTES).etag
        except NotFound:
            return None
