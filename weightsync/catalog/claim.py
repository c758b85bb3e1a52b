"""Claiming a run: the newest claim holds it, and everybody before it is fenced at the next swap."""

from weightsync.catalog.context import Context
from weightsync.catalog.move_writer import MoveWriter
from weightsync.catalog.read import Reader
from weightsync.catalog.values import REPLACED, Change, Claim, Head
from weightsync.errors import Conflict, Fenced
from weightsync.format.keys import LATEST


def claim(ctx: Context, reader: Reader, writer: MoveWriter, who: str) -> Claim:
    """Moves `latest` to epoch + 1 at the version where it stands; the first claim makes the head, with version 0.

    Tries again until it holds: whenever it does not, somebody else has won. Raises `Fenced` when an even newer claim is seen already.
    """
    while True:
        seen = reader.head(LATEST)
        try:
            head = writer.move(seen, _change(seen, who))
        except (Conflict, Fenced):
            ctx.clock.sleep_s(ctx.jitter(ctx.patience.base_s))
            continue
        if head.etag == REPLACED:
            raise Fenced(f"a newer publisher claimed run {ctx.run!r} at once", remedy="stop this one, or start it anew to take over")
        return Claim(head.move.epoch, head, who)


def _change(seen: Head | None, who: str) -> Change:
    if seen is None:
        return Change(LATEST, epoch=1, version=0, manifest=None, highest=0, who=who, why="claim", expires_ms=None)
    now = seen.move
    return Change(LATEST, now.epoch + 1, now.version, now.manifest, now.highest, who, "claim", seen.expires_ms)
