"""Finds out which conditional writes a store really honours: servers that lack them ignore the headers and answer 200."""

from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from weightsync.clock import new_write_id
from weightsync.errors import Conflict, NotFound, OutcomeUnknown, Unavailable, Unsupported, WeightsyncError
from weightsync.store.api import ObjectStore

# full: create and swap · create_only: create, but swap replaces whatever is there · none: neither
Capability = Literal["full", "create_only", "none"]
_ATTEMPTS = 4
_MAX_BYTES = 64


def probe(store: ObjectStore, key_prefix: str, *, new_id: Callable[[], str] = new_write_id) -> Capability:
    """What `store` can do, tried out on an object named `key_prefix` and a random id, which is deleted again.

    Needs the right to write, read and delete below `key_prefix`. Raises `Unavailable` and its kin when the store does not answer clearly.
    """
    for _ in range(_ATTEMPTS):
        with suppress(OutcomeUnknown):
            return _probe_once(store, f"{key_prefix}probe-{new_id()}")
    raise Unavailable(f"store {store.url} keeps losing replies", remedy="check the network, then probe again")


def _probe_once(store: ObjectStore, key: str) -> Capability:
    try:
        if not _creates(store, key):
            return "none"
        return "full" if _swaps(store, key) else "create_only"
    finally:
        # Its failure must not hide what was found out; a left-over probe is a few bytes.
        with suppress(WeightsyncError):
            store.delete(key)


def _creates(store: ObjectStore, key: str) -> bool:
    """Whether the first create works and a second one is refused."""
    try:
        store.create(key, b"first")
    except (Unsupported, Conflict):
        return False
    with suppress(Conflict, Unsupported):
        store.create(key, b"second")
        return False
    return _content(store, key) == b"first"


def _swaps(store: ObjectStore, key: str) -> bool:
    """Whether a swap works with the right tag, and is refused with a stale one and for an object that is gone."""
    stale = store.get(key, max_bytes=_MAX_BYTES).etag
    try:
        store.swap(key, b"third", stale)
    except (Conflict, Unsupported):
        return False
    with suppress(Conflict, Unsupported):
        store.swap(key, b"fourth", stale)
        return False
    if _content(store, key) != b"third":
        return False
    store.delete(key)
    with suppress(Conflict, Unsupported):
        store.swap(key, b"fifth", stale)
        return False
    return True


def _content(store: ObjectStore, key: str) -> bytes | None:
    try:
        return store.get(key, max_bytes=_MAX_BYTES).data
    except NotFound:
        return None
