"""Shards from the cache or the store: in parallel, in bounded memory, and nothing looked into before its BLAKE3 was right."""

import logging
import threading
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from blake3 import blake3

from weightsync.catalog import Catalog
from weightsync.errors import Compacted, Corrupt, NoSpace, NotFound, Unavailable, WeightsyncError
from weightsync.format.versions import Payload, Shard
from weightsync.replica.cache import ObjectCache
from weightsync.store.api import Buffer

_log = logging.getLogger(__name__)
_CLAIM_BYTES = 64 << 20  # twice the usual shard
_READS = 2  # of an object that does not match its digest, before it is called corrupt


class MissingShard(Unavailable):
    """The store does not show a shard: not yet, or no more."""


class ShardSource:
    """Fetches payloads for one consumer at a time.

    `parallel` downloads run at once; `window_bytes` bounds what they and their consumer hold together (a single larger shard is let
    through alone). `bytes_fetched` and `bytes_cached` count what came from where.
    """

    def __init__(self, catalog: Catalog, cache: ObjectCache | None = None, *, parallel: int = 8, window_bytes: int = 256 << 20) -> None:
        self.bytes_fetched = 0
        self.bytes_cached = 0
        self._catalog = catalog
        self._cache = cache
        self._parallel = max(1, parallel)
        self._window_bytes = window_bytes
        self._lock = threading.Lock()

    def shards(self, payload: Payload) -> Generator[tuple[Shard, Buffer], None, None]:
        """Every shard of `payload` with its verified bytes, in the order in which they arrive; further ones arrive meanwhile.

        Raises `Corrupt` naming the object, `Compacted` or `Unavailable` when one is missing, and what the store raises.
        """
        for _, shard, data in self.stream((payload,)):
            yield shard, data

    def stream(self, payloads: Sequence[Payload]) -> Generator[tuple[Payload, Shard, Buffer], None, None]:
        """As `shards`, of one payload after the other; while one is consumed, those after it arrive."""
        waiting = deque((payload, shard) for payload in payloads for shard in payload.shards)
        if not waiting:
            return
        running, held = dict[Future[Buffer], tuple[Payload, Shard]](), 0
        pool = ThreadPoolExecutor(min(self._parallel, len(waiting)), thread_name_prefix="fetch")
        try:
            while waiting or running:
                while waiting and len(running) < self._parallel and (not running or held + waiting[0][1].nbytes <= self._window_bytes):
                    payload, shard = waiting.popleft()
                    held += shard.nbytes
                    running[pool.submit(self.read, payload, shard)] = payload, shard
                # Those asked for first belong to the earliest payload that is not complete.
                now = next(iter(running.values()))[0]
                for future in wait([f for f, (of, _) in running.items() if of is now], return_when=FIRST_COMPLETED).done:
                    payload, shard = running.pop(future)
                    yield payload, shard, future.result()
                    held -= shard.nbytes
        finally:
            pool.shutdown(cancel_futures=True)

    def bytes_of(self, payload: Payload) -> int:
        """Bytes of a payload that are not in the cache."""
        cache = self._cache
        return payload.nbytes if cache is None else sum(shard.nbytes for shard in payload.shards if shard.digest not in cache)

    def read(self, payload: Payload, shard: Shard) -> Buffer:
        """One shard's verified bytes. Raises as `shards`."""
        cached = self._cache.get(shard.ref) if self._cache is not None else None
        if cached is not None:
            with self._lock:
                self.bytes_cached += shard.nbytes
            return cached
        data = self._download(payload, shard)
        if self._cache is not None:
            self._cache.put(shard.ref, data)
        return data

    def _download(self, payload: Payload, shard: Shard) -> Buffer:
        store, base = self._catalog.store, payload.base_version
        key = self._catalog.keys.shard(payload.writer, payload.target.version, base, shard.digest)
        data = self._room(key, payload, shard)
        for attempt in range(1, _READS + 1):
            try:
                store.read_into(key, memoryview(data))
            except NotFound:
                raise self._missing(payload, key) from None
            except Corrupt as error:
                _log.warning("read %d of %s: %s", attempt, key, error)
                continue
            with self._lock:
                self.bytes_fetched += shard.nbytes
            if blake3(data).hexdigest() == shard.digest:
                return data
            _log.warning("read %d of %s in %s does not match its digest", attempt, key, store.url)
        raise Corrupt(
            f"shard {key!r} in {store.url} is not the object that version {payload.target.version} names",
            remedy="bring it back with `weightsync repair`; `weightsync verify` shows all damage",
        )

    def _room(self, key: str, payload: Payload, shard: Shard) -> bytearray:
        """Memory for a shard. Where a record claims much of it, the object must be there first."""
        if shard.nbytes > _CLAIM_BYTES:
            try:
                size = self._catalog.store.stat(key).size_bytes
            except NotFound:
                raise self._missing(payload, key) from None
            if size < shard.nbytes:
                raise Corrupt(f"shard {key!r} in {self._catalog.store.url} has {size} bytes; {shard.nbytes} are claimed")
        try:
            return bytearray(shard.nbytes)
        except MemoryError:
            raise NoSpace(f"no memory for shard {key!r} of {shard.nbytes:,} bytes", remedy="use a machine with more") from None

    def _missing(self, payload: Payload, key: str) -> WeightsyncError:
        version = payload.target.version
        error = self._catalog.missing(version, f"shard {key!r}", f"payloads/{version}/{payload.base_version}-{payload.writer}")
        return error if isinstance(error, Compacted) else MissingShard(error.message, remedy=error.remedy)
