"""Pins: operators' wishes to keep versions. They carry no signature: they can only keep."""

import logging

from weightsync.catalog.boundary import look, looked_after
from weightsync.catalog.context import Context
from weightsync.catalog.read import Reader
from weightsync.catalog.records import naming
from weightsync.errors import AlreadyExists, Corrupt, NotFound, Unsupported
from weightsync.format.envelope import Envelope, seal
from weightsync.format.limits import MAX_RECORD_BYTES
from weightsync.format.operators import Pin

logger = logging.getLogger(__name__)


def put_pin(ctx: Context, reader: Reader, version: int, who: str, why: str) -> Pin:
    """Keeps a committed version until it is unpinned. Looks for the collector before and after; on a hit takes it back.

    Returns the pin that stands: an older one stays as it is. Raises `NotFound` for a version that was not committed, `Compacted`.
    """
    pin = Pin(ctx.run, reader.find(version).version, who, why, ctx.now_ms())
    look(ctx, version)
    try:
        ctx.ensure(ctx.keys.pin(version), seal(pin.to_body()).data)
    except AlreadyExists:
        pin = _read(ctx, version) or pin
    looked_after(ctx, version, lambda: ctx.store.delete(ctx.keys.pin(version)))
    return pin


def drop_pin(ctx: Context, version: int) -> None:
    """Removes a pin. Raises `NotFound` when there is none."""
    try:
        ctx.store.stat(ctx.keys.pin(version))
    except NotFound:
        raise NotFound(f"version {version} of run {ctx.run!r} is not pinned", remedy="`weightsync gc --dry-run` shows what is") from None
    ctx.store.delete(ctx.keys.pin(version))


def pins(ctx: Context, known: tuple[int, ...] = ()) -> list[Pin]:
    """All pins, by LIST, ascending; `known` ones are looked for by name as well. One that cannot be read still keeps its version."""
    versions = set(known)
    for stat in ctx.store.list(ctx.keys.pins):
        version = ctx.keys.parse_pin(stat.key)
        if version is not None:
            versions.add(version)
    found = (_read(ctx, version) for version in sorted(versions))
    return [pin for pin in found if pin is not None]


def _read(ctx: Context, version: int) -> Pin | None:
    key = ctx.keys.pin(version)
    try:
        data = ctx.retrying(lambda: ctx.store.get(key, max_bytes=MAX_RECORD_BYTES)).data
        with naming(ctx, key):
            pin = Pin.from_envelope(Envelope.parse(data, ctx.name(key)), run=ctx.run)
    except NotFound:
        return None
    except (Corrupt, Unsupported) as error:
        logger.warning("a pin cannot be read, and keeps its version all the same: %s", error)
        return Pin(ctx.run, version, "?", "its record cannot be read", 0)
    return pin if pin.version == version else Pin(ctx.run, version, pin.who, "its record names another version", pin.created_ms)
