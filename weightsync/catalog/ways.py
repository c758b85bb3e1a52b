"""The ways into versions, for who looks for a path through many of them: found by LIST, read ahead and in parallel.

LIST is a hint here as everywhere. What it does not show costs bytes; who finds no way at all asks again, and then every manifest is read
for its own first payload. A payload counts where it names the manifest that the reader came by: from a verified head at first, then from
verified payloads.
"""

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from types import TracebackType
from typing import Self

from weightsync.catalog.boundary import missing
from weightsync.catalog.context import Context
from weightsync.catalog.read import Reader
from weightsync.catalog.records import read_payload
from weightsync.errors import NotFound, WeightsyncError
from weightsync.format.keys import payload_name
from weightsync.format.refs import VersionRef
from weightsync.format.versions import Payload

logger = logging.getLogger(__name__)

THREADS = 16
WINDOW = 100  # versions that share all digits but the last two
FIRST_AHEAD, MOST_AHEAD = 8, 64  # versions whose payloads are read together
MAX_KEYS = 5000  # of one listing: more, and its versions are listed one by one
MAX_PAYLOADS = 256  # looked at for one version

Key = tuple[int, str]  # base and writer
Found = Payload | WeightsyncError


class Ways:
    """One search. Use as a context: it has threads."""

    def __init__(self, ctx: Context, reader: Reader, *, thorough: bool = False) -> None:
        """`thorough`: read the manifest of every version, not only of those that LIST does not show."""
        self._ctx, self._reader, self._thorough = ctx, reader, thorough
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="weightsync-ways")
        self._listed: dict[int, dict[int, list[Key]] | None] = {}  # by window; None: too large
        self._keys: dict[int, list[Key]] = {}
        self._read: dict[tuple[int, Key], Found] = {}
        self._ahead = FIRST_AHEAD

    def into(self, target: VersionRef, first: Key | None = None) -> list[Payload]:
        """Every usable payload of `target`; `first` is the one that its manifest names, if that is known.

        Raises `Compacted` or what else stood in the way when there is none.
        """
        self._look_ahead(target.version)
        keys = list(self._keys.get(target.version, ()))
        if first is None and (self._thorough or not keys):
            manifest = self._reader.manifest(target).manifest
            first = (manifest.base, manifest.writer)
        if first is not None and first not in keys:
            self._fetch([(target.version, first)])
            keys.insert(0, first)
        found = [self._read[target.version, key] for key in keys]
        payloads = [payload for payload in found if isinstance(payload, Payload) and payload.target == target]
        if not payloads:
            failures = [error for error in found if not isinstance(error, Payload)]
            raise failures[0] if failures else missing(self._ctx, target.version, "every payload")
        return payloads

    def _look_ahead(self, version: int) -> None:
        if version in self._keys:
            return
        numbers = [n for n in range(max(1, version - self._ahead + 1), version + 1) if n not in self._keys]
        self._ahead = min(2 * self._ahead, MOST_AHEAD)
        for window in sorted({n // WINDOW for n in numbers}):
            if window not in self._listed:
                self._listed[window] = self._list(window)
        alone = [n for n in numbers if self._listed[n // WINDOW] is None]
        self._keys.update(zip(alone, self._pool.map(self._list_one, alone), strict=True))
        for n in numbers:
            listed = self._listed[n // WINDOW]
            if listed is not None:
                self._keys[n] = listed.get(n, [])
        self._fetch([(n, key) for n in numbers for key in self._keys[n]])

    def _list(self, window: int) -> dict[int, list[Key]] | None:
        prefix = f"{self._ctx.keys.versions}{window or ''}"
        try:
            keys = [stat.key for stat in islice(self._ctx.store.list(prefix), MAX_KEYS + 1)]
        except WeightsyncError as error:
            logger.info("only first payloads are tried: %s", error)
            return {}
        if len(keys) > MAX_KEYS:
            return None
        found: dict[int, list[Key]] = {}
        for version, base, writer in filter(None, map(self._ctx.keys.parse_payload, keys)):
            found.setdefault(version, []).append((base, writer))
        return found

    def _list_one(self, version: int) -> list[Key]:
        try:
            keys = [stat.key for stat in islice(self._ctx.store.list(self._ctx.keys.payloads(version)), MAX_PAYLOADS)]
        except WeightsyncError as error:
            logger.info("only the first payload of version %d is tried: %s", version, error)
            return []
        return [(base, writer) for _, base, writer in filter(None, map(self._ctx.keys.parse_payload, keys))]

    def _fetch(self, wanted: Iterable[tuple[int, Key]]) -> None:
        missing_ones = [place for place in wanted if place not in self._read]
        self._read.update(zip(missing_ones, self._pool.map(self._payload, missing_ones), strict=True))

    def _payload(self, place: tuple[int, Key]) -> Found:
        version, (base, writer) = place
        key = self._ctx.keys.payload(version, base, writer)
        try:
            return read_payload(self._ctx, key)
        except NotFound:
            try:
                return missing(self._ctx, version, f"the payload {key!r}", payload_name(version, base, writer))
            except WeightsyncError as error:
                return error
        except WeightsyncError as error:
            logger.info("payload ignored: %s", error)
            return error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)
