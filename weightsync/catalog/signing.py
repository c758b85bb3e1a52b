"""Records that this process is about to write. Each is read back by our own strict reader first: we never store what we would refuse."""

from collections.abc import Callable

from weightsync.catalog.context import Context
from weightsync.catalog.values import Change, Head
from weightsync.errors import Corrupt, Invalid, Unsupported
from weightsync.format.envelope import Envelope
from weightsync.format.limits import MAX_RECORD_BYTES
from weightsync.format.moves import Move
from weightsync.trust import Role
from weightsync.trust.policy import role_of_channel


def sealed(ctx: Context, body: Callable[[], bytes], role: Role, read: Callable[[Envelope], object]) -> Envelope:
    """The envelope of `body()`, which `read` accepts. Raises `Invalid`, and `Denied` without the key."""
    try:
        envelope = ctx.policy.seal(body(), role)
        if len(envelope.data) > MAX_RECORD_BYTES:
            raise Invalid(f"a record of {len(envelope.data)} bytes is beyond the limit of {MAX_RECORD_BYTES}", remedy="use larger shards")
        read(envelope)
    except (Corrupt, Unsupported, ValueError) as error:  # ValueError: text that has no canonical spelling
        raise Invalid(f"a record cannot be written as it is: {error}") from error
    return envelope


def next_move(ctx: Context, seen: Head | None, change: Change) -> tuple[Move, Envelope]:
    """The move that follows `seen` (None: the channel's first), signed."""
    move = Move(
        run=ctx.run,
        channel=change.channel,
        sequence=seen.move.sequence + 1 if seen else 1,
        epoch=change.epoch,
        version=change.version,
        highest=change.highest,
        manifest=change.manifest,
        previous=seen.ref if seen else None,
        write_id=ctx.new_id(),
        who=change.who,
        why=change.why,
        created_ms=ctx.now_ms(),
        expires_ms=change.expires_ms,
    )
    role = role_of_channel(change.channel)
    return move, sealed(ctx, move.to_body, role, lambda envelope: Move.from_envelope(envelope, run=ctx.run, channel=change.channel))
