"""Keeping a head fresh: a renewal beside the move, without a new sequence."""

from weightsync.catalog.context import Context
from weightsync.catalog.read import Reader
from weightsync.catalog.signing import sealed
from weightsync.catalog.values import Head
from weightsync.errors import Conflict, Denied, Invalid, NoSpace, NotFound, Unavailable
from weightsync.format.moves import Renewal, join_head
from weightsync.trust import Role


def renew(ctx: Context, reader: Reader, channel: str, expires_ms: int) -> Head:
    """Lets the move that `channel` is at expire at `expires_ms` at the earliest. A lost reply, or a move meanwhile, starts it over.

    Raises `NotFound` for a channel that does not exist, `Invalid` for one that never expires, `Denied` without the freshness key.
    """
    backoff = ctx.backoff()
    while True:
        head = reader.head(channel)
        if head is None:
            raise NotFound(f"channel {channel!r} of run {ctx.run!r} does not exist", remedy="`weightsync status` lists those that do")
        if head.expires_ms is None:
            raise Invalid(f"channel {channel!r} of run {ctx.run!r} never expires", remedy="nothing needs to be renewed")
        if head.expires_ms >= expires_ms:
            return head
        try:
            ctx.heads.write(ctx.keys.head(channel), _renewed(ctx, head, expires_ms), head.etag)
        except Conflict:
            continue  # renewed or moved meanwhile
        except (Denied, NoSpace):
            raise
        except Unavailable as error:
            backoff.wait(error)


def _renewed(ctx: Context, head: Head, expires_ms: int) -> bytes:
    renewal = Renewal(ctx.run, head.digest, head.renewal + 1, expires_ms)
    signed = sealed(ctx, renewal.to_body, Role.FRESHNESS, lambda e: Renewal.from_envelope(e, run=ctx.run, move=head.digest))
    return join_head(head.data, signed.data)
