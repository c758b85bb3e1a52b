"""Promoting and rolling back: pointing a channel to a committed version."""

from weightsync.catalog.boundary import look
from weightsync.catalog.context import Context
from weightsync.catalog.foreign_move import MovePlan
from weightsync.catalog.history import winner
from weightsync.catalog.move_writer import MoveWriter
from weightsync.catalog.read import Reader
from weightsync.catalog.retract import Retractor
from weightsync.catalog.signing import next_move
from weightsync.catalog.values import Change, Head
from weightsync.errors import Conflict, Fenced, Invalid
from weightsync.format.keys import LATEST
from weightsync.format.moves import Move
from weightsync.format.names import check_plain
from weightsync.format.refs import VersionRef


class Mover:
    """Moves channels of one run."""

    def __init__(self, ctx: Context, reader: Reader, writer: MoveWriter, retractor: Retractor) -> None:
        self._ctx = ctx
        self._reader = reader
        self._writer = writer
        self._retractor = retractor

    def move(
        self, channel: str, target: VersionRef | int, *, expected_sequence: int | None, who: str, why: str, expires_ms: int | None = None
    ) -> Head:
        """Points `channel` to the committed version `target` by a new sequence; on `latest` this claims the next epoch.

        `expected_sequence` is what the caller has seen (0: no such channel yet; None: whatever it is now). `expires_ms` None: as before.
        Raises `NotFound` for a version that was not committed, `Conflict` naming who moved the channel meanwhile, `Compacted`, `Invalid`
        for a move that changes nothing, `Denied` without the key.
        """
        seen, change = self._decide(channel, target, expected_sequence, who=who, why=why, expires_ms=expires_ms)
        head = self._write(seen, change)
        self._retractor.check(channel, change.version, who)
        return head

    def plan(
        self, channel: str, target: VersionRef | int, *, expected_sequence: int | None, who: str, why: str, expires_ms: int | None = None
    ) -> MovePlan:
        """The same move, signed but not written, for somebody else to swap in (`foreign_move`). Raises as `move`."""
        return MovePlan(*next_move(self._ctx, *self._decide(channel, target, expected_sequence, who=who, why=why, expires_ms=expires_ms)))

    def _decide(
        self, channel: str, target: VersionRef | int, expected_sequence: int | None, *, who: str, why: str, expires_ms: int | None
    ) -> tuple[Head | None, Change]:
        check_plain(channel, "channel")
        latest = self._reader.latest()
        found = self._target(latest, target)
        look(self._ctx, found.version)
        self._reader.manifest(VersionRef(found.version, found.manifest.digest if found.manifest else ""))
        seen = latest if channel == LATEST else self._reader.head(channel)
        self._check(channel, seen, found.version, expected_sequence, expires_ms)
        expires = expires_ms if expires_ms is not None or seen is None else seen.expires_ms
        epoch = (seen.move.epoch if seen else 0) + (channel == LATEST)
        highest = max(latest.move.highest, seen.move.highest if seen else 0)
        return seen, Change(channel, epoch, found.version, found.manifest, highest, who, why, expires)

    def _target(self, latest: Head, target: VersionRef | int) -> Move:
        version = target if isinstance(target, int) else target.version
        move = self._reader.find_move(latest, version)
        if isinstance(target, VersionRef) and (move.manifest is None or move.manifest.digest != target.manifest):
            raise Invalid(f"version {version} of run {self._ctx.run!r} has another manifest than {target.manifest[:12]}")
        return move

    def _check(self, channel: str, seen: Head | None, version: int, expected: int | None, expires_ms: int | None) -> None:
        sequence = seen.move.sequence if seen else 0
        if expected is not None and expected != sequence:
            now = winner(seen.move) if seen else f"channel {channel!r} does not exist"
            raise Conflict(f"sequence {expected} was expected, but {now}", remedy="look at what it is now, and decide again")
        if channel != LATEST and seen is not None and seen.move.version == version and expires_ms in (None, seen.expires_ms):
            raise Invalid(f"channel {channel!r} points to version {version} already", remedy="nothing needs to be done")

    def _write(self, seen: Head | None, change: Change) -> Head:
        try:
            return self._writer.move(seen, change)
        except Fenced as error:  # an operator holds no epoch that could be lost: somebody was faster
            raise Conflict(error.message, remedy="look at what it is now, and decide again") from error
