"""The ways to reach a version: its first payload, and more that were added later."""

import logging
from itertools import islice

from weightsync.catalog.boundary import missing
from weightsync.catalog.context import Context
from weightsync.catalog.read import Reader
from weightsync.catalog.records import read_payload
from weightsync.catalog.values import VersionRecord
from weightsync.errors import Compacted, Corrupt, Denied, NotFound, Unavailable, Unsupported, WeightsyncError
from weightsync.format.keys import LATEST, payload_name
from weightsync.format.refs import VersionRef
from weightsync.format.versions import Payload

logger = logging.getLogger(__name__)

MAX_PAYLOADS = 256  # looked at for one version


class ForeignPayload(Corrupt):
    """A payload of that number for another manifest, as a publisher leaves it that has lost the number; or one that was swapped."""


class Payloads:
    """Payloads that lead from one committed manifest to another; others are ignored, whoever signed them."""

    def __init__(self, ctx: Context, reader: Reader) -> None:
        self._ctx = ctx
        self._reader = reader

    def one(self, record: VersionRecord, base: int, writer: str) -> Payload:
        """One payload of `record`. Raises `Corrupt` when it does not fit, `Compacted`, `Unavailable` when it is not visible."""
        version = record.ref.version
        key = self._ctx.keys.payload(version, base, writer)
        try:
            payload = read_payload(self._ctx, key)
        except NotFound:
            raise missing(self._ctx, version, f"the payload {key!r}", payload_name(version, base, writer)) from None
        if not self._fits(payload, record):
            raise ForeignPayload(f"the payload {self._ctx.name(key)} of version {version} names other manifests than the committed ones")
        return payload

    def all(self, record: VersionRecord) -> list[Payload]:
        """Every usable payload, the first one first. Raises the first one's error when there is none."""
        first = (record.manifest.base, record.manifest.writer)
        found: list[Payload] = []
        failures: list[WeightsyncError] = []
        for base, writer in (first, *(added for added in self._added(record.ref.version) if added != first)):
            try:
                found.append(self.one(record, base, writer))
            except (Corrupt, Compacted, Unsupported, Unavailable) as error:
                if isinstance(error, Denied):
                    raise
                logger.warning("payload ignored: %s", error)
                failures.append(error)
        if not found:
            raise failures[0]
        return found

    def _added(self, version: int) -> list[tuple[int, str]]:
        try:
            keys = [stat.key for stat in islice(self._ctx.store.list(self._ctx.keys.payloads(version)), MAX_PAYLOADS)]
        except Denied as error:
            logger.info("only the first payload of version %d is tried: %s", version, error)
            return []
        parsed = (self._ctx.keys.parse_payload(key) for key in keys)
        return [(base, writer) for number, base, writer in filter(None, parsed) if number == version]

    def _fits(self, payload: Payload, record: VersionRecord) -> bool:
        if payload.target != record.ref:
            return False
        return payload.base is None or payload.base == record.manifest.parent or self._is_committed(payload.base)

    def _is_committed(self, ref: VersionRef) -> bool:
        head = self._reader.head(LATEST)
        if head is None:
            return False
        try:
            move = self._reader.find_move(head, ref.version)
        except NotFound:
            return False
        return move.manifest is not None and move.manifest.digest == ref.manifest
