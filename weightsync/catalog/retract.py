"""Taking back a move to a version that turned out to be under collection: by a further move, to a version that stays."""

import logging
from functools import partial

from weightsync.catalog.boundary import compacted, read_boundary
from weightsync.catalog.context import Context
from weightsync.catalog.move_writer import MoveWriter
from weightsync.catalog.read import Reader
from weightsync.catalog.values import Change, Head
from weightsync.errors import Compacted, Conflict, Denied, Fenced, OutcomeUnknown, Unavailable
from weightsync.format.keys import LATEST
from weightsync.format.moves import Move

logger = logging.getLogger(__name__)


class Retractor:
    """The look after a head was written.

    The collector marks, waits, reads the heads again and withdraws the marks they need. Who writes a head and then sees no mark was there
    in time for that second reading; who sees one may not have been.
    """

    def __init__(self, ctx: Context, reader: Reader, writer: MoveWriter) -> None:
        self._ctx = ctx
        self._reader = reader
        self._writer = writer

    def check(self, channel: str, version: int, who: str, *needed: int) -> None:
        """Raises `Compacted`, with `channel` moved on, when `version` or what it needs is marked or condemned.

        `OutcomeUnknown`: the head was moved, but whether it may stay could not be found out.
        """
        try:
            hit = self._first_hit(version, *needed)
            if hit is None:
                return
            self._move_on_or_tell(channel, version, who)
        except Unavailable as error:
            raise OutcomeUnknown(
                f"channel {channel!r} was moved to version {version}; whether that is being collected is not known: {error.message}",
                remedy="repeat the call when the store answers again",
            ) from error
        raise compacted(self._ctx, hit)

    def _first_hit(self, *versions: int) -> int | None:
        boundary, _ = self._ctx.retrying(lambda: read_boundary(self._ctx))
        return next((version for version in versions if boundary is not None and boundary.hit(version)), None)

    def _move_on_or_tell(self, channel: str, version: int, who: str) -> None:
        try:
            self._move_on(channel, version, who)
        except Denied as error:  # a control plane holds no key
            raise Compacted(
                f"channel {channel!r} was moved to version {version}, which is collected; it cannot be moved on: {error.message}",
                remedy="move it to another version at once",
            ) from error

    def _move_on(self, channel: str, version: int, who: str) -> None:
        while True:
            now = self._ctx.retrying(lambda: self._reader.head(channel))
            if now is None or now.move.version != version:
                return  # somebody else has moved it on
            way = self._ctx.retrying(partial(self._way_on, version))
            if way is None:
                logger.error("channel %r of run %r stays on version %d: no other is left", channel, self._ctx.run, version)
                return
            try:
                self._writer.move(now, _change(channel, now, way, who, version))
            except (Conflict, Fenced):
                continue
            if self._first_hit(way.version) is None:
                return
            version = way.version

    def _way_on(self, bad: int) -> Move | None:
        """A move of `latest` to a version that is kept: where the head stands, else the newest that is not marked."""
        boundary, _ = read_boundary(self._ctx)
        head = self._reader.latest()
        for move, _ in self._reader.history(head):
            good = move.version not in (0, bad) and not (boundary is not None and boundary.hit(move.version))
            if good:
                return move
        return None


def _change(channel: str, now: Head, way: Move, who: str, version: int) -> Change:
    epoch = now.move.epoch + (channel == LATEST)  # whoever built on that version since is fenced
    highest = max(now.move.highest, way.highest)
    return Change(channel, epoch, way.version, way.manifest, highest, who, f"version {version} is collected", now.expires_ms)
