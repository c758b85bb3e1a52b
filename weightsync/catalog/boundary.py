"""What is marked or condemned for collection: writers look before and after they write, readers when an object is missing."""

from weightsync.catalog.context import Context
from weightsync.catalog.records import naming
from weightsync.errors import Compacted, NotFound, Unavailable, WeightsyncError
from weightsync.format.envelope import Envelope
from weightsync.format.limits import MAX_RECORD_BYTES
from weightsync.format.operators import Boundary


def read_boundary(ctx: Context) -> tuple[Boundary | None, str | None]:
    """The boundary and its etag; (None, None) before the first collection. Raises `Corrupt`.

    It carries no signature: the collector need not hold a key, and a false boundary can make us refuse, never accept.
    """
    key = ctx.keys.boundary
    try:
        found = ctx.store.get(key, max_bytes=MAX_RECORD_BYTES)
    except NotFound:
        return None, None
    with naming(ctx, key):
        return Boundary.from_envelope(Envelope.parse(found.data, ctx.name(key)), run=ctx.run), found.etag


def look(ctx: Context, *versions: int) -> None:
    """Raises `Compacted` when one of `versions` is marked or condemned."""
    boundary, _ = read_boundary(ctx)
    if boundary is None:
        return
    for version in versions:
        if boundary.hit(version):
            raise compacted(ctx, version)


def compacted(ctx: Context, version: int) -> Compacted:
    """The error of a version that is going, or gone."""
    return Compacted(
        f"version {version} of run {ctx.run!r} is collected, or about to be",
        remedy="go on to the newest version; `weightsync versions` shows what is left",
    )


def missing(ctx: Context, version: int, what: str, name: str = "") -> WeightsyncError:
    """The error of an object that `version` needs and that is not there: gone for good, or not yet visible.

    `name` is the payload or leftover that it belongs to, as the boundary names it, if any.
    """
    boundary, _ = read_boundary(ctx)
    if boundary is not None and (boundary.hit(version) or (name and boundary.hit_name(name))):
        return compacted(ctx, version)
    return Unavailable(
        f"{what} of version {version} of run {ctx.run!r} is not in {ctx.store.url}",
        remedy="it may not be visible yet: retry; if it stays away, run `weightsync verify`",
    )
