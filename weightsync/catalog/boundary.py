"""What is marked or condemned for collection: writers look before and after they write, readers when an object is missing."""

from collections.abc import Callable
from dataclasses import replace

from weightsync.catalog.context import Context
from weightsync.catalog.records import naming
from weightsync.errors import Compacted, Conflict, Denied, Invalid, NoSpace, NotFound, Unavailable, WeightsyncError
from weightsync.format.envelope import Envelope, seal
from weightsync.format.keys import LATEST, version_name
from weightsync.format.limits import MAX_RECORD_BYTES
from weightsync.format.moves import Move, split_head
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


def swap_boundary(ctx: Context, boundary: Boundary, etag: str | None) -> tuple[Boundary, str]:
    """Replaces the boundary with `etag` (None: there was none) and returns it as written, with its new etag.

    Raises `Conflict` when another collector was faster, `Invalid` when it would be beyond the limit of a record, `Unavailable`.
    """
    boundary = replace(boundary, write_id=ctx.new_id())
    data = seal(boundary.to_body()).data
    if len(data) > MAX_RECORD_BYTES:
        raise Invalid(f"a boundary of {len(data)} bytes is beyond the limit of {MAX_RECORD_BYTES}", remedy="keep fewer versions apart")
    backoff = ctx.backoff()
    while True:
        try:
            return boundary, ctx.heads.write(ctx.keys.boundary, data, etag)
        except (Conflict, Unavailable) as error:
            failure: WeightsyncError = error
        now, now_etag = ctx.retrying(lambda: read_boundary(ctx))
        if now is not None and now_etag is not None and now.write_id == boundary.write_id:
            return boundary, now_etag
        if now_etag != etag:
            raise Conflict("another collector has changed the boundary meanwhile", remedy="run it again")
        if isinstance(failure, Denied | NoSpace):
            raise failure
        backoff.wait(failure)


def look(ctx: Context, *versions: int, names: tuple[str, ...] = ()) -> None:
    """Raises `Compacted` when one of `versions` is marked or condemned; so too when something of `names`, which belong to the first, is."""
    boundary, _ = read_boundary(ctx)
    if boundary is None:
        return
    for version in versions:
        if boundary.hit(version):
            raise compacted(ctx, version)
    if any(boundary.hit_name(name) for name in names):
        raise compacted(ctx, versions[0])


def looked_after(ctx: Context, version: int, take_back: Callable[[], None], *, names: tuple[str, ...] = ()) -> None:
    """The look after something was written for `version`'s sake: on a hit it is taken back, and `Compacted` is raised."""
    try:
        ctx.retrying(lambda: look(ctx, version, names=names))
    except Compacted:
        take_back()
        raise


def compacted(ctx: Context, version: int) -> Compacted:
    """The error of a version that is going, or gone, with the way on."""
    newest = _newest(ctx)
    way = "go on to the newest version" + (f", {newest}" if newest not in (0, version) else "")
    return Compacted(
        f"version {version} of run {ctx.run!r} is collected, or about to be", remedy=f"{way}; `weightsync versions` shows what is left"
    )


def _newest(ctx: Context) -> int:
    """Where `latest` points: a word of help, so that whatever goes wrong gives none."""
    try:
        data, _ = split_head(ctx.store.get(ctx.keys.head(LATEST), max_bytes=2 * MAX_RECORD_BYTES + 1).data)
        return Move.from_envelope(Envelope.parse(data, "head"), run=ctx.run, channel=LATEST).version
    except WeightsyncError:
        return 0


def missing(ctx: Context, version: int, what: str, name: str = "") -> WeightsyncError:
    """The error of an object that `version` needs and that is not there: gone for good, or not yet visible.

    `name` is what the boundary calls the payload or the leaves that it belongs to; empty: the version's own records. What is held for a
    kept version's chain was not collected: if it is missing, it was lost.
    """
    boundary, _ = read_boundary(ctx)
    if boundary is not None and not boundary.holds(name or version_name(version)) and (boundary.hit(version) or boundary.hit_name(name)):
        return compacted(ctx, version)
    return Unavailable(
        f"{what} of version {version} of run {ctx.run!r} is not in {ctx.store.url}",
        remedy="it may not be visible yet: retry; if it stays away, run `weightsync verify`",
    )
