"""Taking over a head from another store's copy of the same run: bytes that were signed there, whose log stands here already."""

from weightsync.catalog.context import Context
from weightsync.catalog.read import Reader
from weightsync.catalog.records import read_head
from weightsync.catalog.values import Head
from weightsync.errors import Conflict, Corrupt, Unavailable
from weightsync.store.api import Object


def adopt_head(ctx: Context, reader: Reader, channel: str, data: bytes, *, damaged_etag: str | None = None) -> Head:
    """Makes `channel` point where the head object `data` says, if that follows from where it points here. Returns the head that stands.

    Where this store's head is the same or further on, it stays. `damaged_etag`: of a head object here that cannot be read, to be replaced.
    Raises `Conflict` when the two have parted, or somebody else is at work here; `Corrupt` where the log here does not lead to that head.
    """
    wanted = read_head(ctx, channel, Object(data, ""))
    backoff = ctx.backoff()
    while True:
        seen = None if damaged_etag is not None else ctx.retrying(lambda: reader.head(channel))
        if seen is not None and seen.move.sequence >= wanted.move.sequence:
            return _further(reader, seen, wanted)
        _check_follows(reader, seen, wanted)
        try:
            etag = ctx.heads.write(ctx.keys.head(channel), data, seen.etag if seen is not None else damaged_etag)
            return Head(wanted.move, wanted.digest, wanted.nbytes, etag, wanted.expires_ms, wanted.data, wanted.renewal)
        except (Conflict, Unavailable) as error:
            damaged_etag = None
            backoff.wait(error) if isinstance(error, Unavailable) else None
            now = ctx.retrying(lambda: reader.head(channel))
            if now is None or (isinstance(error, Conflict) and seen is not None and now.digest == seen.digest):
                backoff.wait(Unavailable(error.message))


def _further(reader: Reader, seen: Head, wanted: Head) -> Head:
    *_, (_, digest) = reader.history(seen, down_to=wanted.move.sequence)
    if digest != wanted.digest:
        raise _parted(wanted)
    return seen


def _check_follows(reader: Reader, seen: Head | None, wanted: Head) -> None:
    down_to = seen.move.sequence if seen is not None else 1
    *_, (move, digest) = reader.history(wanted, down_to=down_to)
    if move.sequence != down_to:
        raise Corrupt(f"the log of channel {wanted.move.channel!r} does not lead from sequence {down_to} to {wanted.move.sequence}")
    if seen is not None and digest != seen.digest:
        raise _parted(wanted)


def _parted(wanted: Head) -> Conflict:
    return Conflict(
        f"channel {wanted.move.channel!r} has gone another way here than where it is copied from (sequence {wanted.move.sequence})",
        remedy="somebody publishes to both: copy to an empty place, and let one of them go",
    )
