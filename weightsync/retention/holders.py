"""Who may still have an object that a store has lost. Nothing that they give is trusted: whoever asks checks it."""

import logging
from typing import TYPE_CHECKING, Protocol

from weightsync.errors import Corrupt, NotFound, WeightsyncError
from weightsync.format.keys import RunKeys
from weightsync.format.refs import Ref
from weightsync.replica.cache import ObjectCache
from weightsync.replica.replica import Replica
from weightsync.retention.objects import Item
from weightsync.store.api import ObjectStore

logger = logging.getLogger(__name__)


class Holder(Protocol):
    """A place to look."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    def find(self, item: Item) -> bytes | None:
        """The object, checked; None where it is not here, or not right."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """Keys that it has below `prefix`."""
        ...


class StoreHolder:
    """Another store with the same run."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    @property
    def name(self) -> str:
        """Its address."""
        return self.store.url

    def find(self, item: Item) -> bytes | None:
        """From the same key."""
        try:
            data = self.store.get(item.key, max_bytes=item.max_bytes).data
            item.check(data)
        except NotFound:
            return None
        except Corrupt as error:
            logger.warning("%s cannot help with %s: %s", self.name, item.key, error)
            return None
        return data

    def keys(self, prefix: str) -> list[str]:
        """By LIST."""
        return [stat.key for stat in self.store.list(prefix)]


class CacheHolder:
    """A host's cache of verified objects. It knows objects by digest, so that records are not in it."""

    def __init__(self, cache: ObjectCache, name: str) -> None:
        self._cache, self.name = cache, name

    def find(self, item: Item) -> bytes | None:
        """By digest."""
        return None if item.ref is None else self._cache.get(item.ref)

    def keys(self, prefix: str) -> list[str]:
        """None: it does not know what its objects are called."""
        del prefix
        return []


class ReplicaHolder:
    """A replica that holds a version, which its own leaves prove. It gives layout and leaves; and it can be made into a snapshot."""

    def __init__(self, replica: Replica, keys: RunKeys) -> None:
        self.replica, self._keys = replica, keys

    @property
    def name(self) -> str:
        """Its directory."""
        return str(self.replica.path)

    def find(self, item: Item) -> bytes | None:
        """Layout or leaves of the version that is held."""
        layout, table = self.replica.layout, self.replica.table
        if layout is None or table is None or item.ref is None:
            return None
        for kind, make in (("layouts", layout.to_bytes), ("digests", lambda: table.to_bytes(layout))):
            if item.key.startswith(f"{self._keys.prefix}{kind}/"):
                data = make()
                return data if Ref.of(data) == item.ref else None
        return None

    def keys(self, prefix: str) -> list[str]:
        """None."""
        del prefix
        return []


def first(holders: "list[Holder]", item: Item) -> tuple[bytes, str] | None:
    """The object from the first holder that has it, and the holder's name. One that fails is passed over."""
    for holder in holders:
        try:
            data = holder.find(item)
        except WeightsyncError as error:
            logger.warning("%s cannot be asked: %s", holder.name, error)
            continue
        if data is not None:
            return data, holder.name
    return None


if TYPE_CHECKING:
    _conforms: list[type[Holder]] = [StoreHolder, CacheHolder, ReplicaHolder]
