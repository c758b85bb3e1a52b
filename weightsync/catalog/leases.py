"""Leases: expiring claims of subscribers, written for them by who may write to the store. They carry no signature: they can only keep."""

import logging

from weightsync.catalog.boundary import look, looked_after
from weightsync.catalog.context import Context
from weightsync.catalog.read import Reader
from weightsync.errors import Corrupt, NotFound, Unsupported
from weightsync.format.envelope import Envelope, seal
from weightsync.format.limits import MAX_RECORD_BYTES
from weightsync.format.names import check_plain
from weightsync.format.operators import Lease

logger = logging.getLogger(__name__)

_SEPARATOR = "--"


def lease_name(holder: str, version: int) -> str:
    """What a lease is called in the store: a holder may keep several versions. Raises `Invalid`."""
    return f"{check_plain(holder, 'holder')}{_SEPARATOR}{version}"


def holder_of(lease: Lease) -> str:
    """Who holds it, as given to `put_lease`."""
    return lease.holder.removesuffix(f"{_SEPARATOR}{lease.version}")


def put_lease(ctx: Context, reader: Reader, holder: str, version: int, expires_ms: int) -> Lease:
    """Writes or extends a lease of a committed version. Looks for the collector before and after; on a hit takes it back.

    Raises `NotFound` for a version that was not committed, `Compacted` for one that is collected.
    """
    lease = Lease(ctx.run, lease_name(holder, version), reader.find(version).version, expires_ms)
    look(ctx, version)
    ctx.store.put(ctx.keys.lease(lease.holder), seal(lease.to_body()).data)
    looked_after(ctx, version, lambda: drop_lease(ctx, holder, version))
    return lease


def drop_lease(ctx: Context, holder: str, version: int) -> None:
    """Removes a lease; a missing one is fine."""
    ctx.store.delete(ctx.keys.lease(lease_name(holder, version)))


class Leases:
    """All leases of a run, each read once: LIST tells by the etag which have changed. Safe to use from many threads."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._known: dict[str, tuple[str, Lease | None]] = {}

    def all(self) -> list[Lease]:
        """Expired ones included. What cannot be read is left out, with a warning: it may be another's half-written one."""
        prefix = self._ctx.keys.lease("x").removesuffix("x")
        known, now = self._known, {}
        for stat in self._ctx.store.list(prefix):
            etag, lease = known.get(stat.key, ("", None))
            if etag != stat.etag or not etag:
                lease = self._read(stat.key)
            now[stat.key] = (stat.etag, lease)
        self._known = now
        return [lease for _, lease in now.values() if lease is not None]

    def _read(self, key: str) -> Lease | None:
        try:
            envelope = Envelope.parse(self._ctx.store.get(key, max_bytes=MAX_RECORD_BYTES).data, self._ctx.name(key))
            lease = Lease.from_envelope(envelope, run=self._ctx.run)
        except NotFound:
            return None
        except (Corrupt, Unsupported) as error:
            logger.warning("a lease is left out: %s", error)
            return None
        return lease if key.endswith(f"/{lease.holder}") else None
