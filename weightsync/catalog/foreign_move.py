"""Moves made by one process and swapped in by another: an operator makes and signs one, a server without keys checks it and swaps.

plan = catalog.plan_move("serving", 7, expected_sequence=None, who=who, why=why)      writes nothing
catalog.apply_move("serving", plan.envelope.data, expected_sequence=plan.move.sequence - 1)
"""

from dataclasses import dataclass, field

from weightsync.catalog.boundary import look
from weightsync.catalog.context import Context
from weightsync.catalog.history import winner
from weightsync.catalog.move_writer import MoveWriter
from weightsync.catalog.read import Reader
from weightsync.catalog.retract import Retractor
from weightsync.catalog.values import REPLACED, Head
from weightsync.errors import AlreadyExists, Conflict, Corrupt, Fenced, Invalid, Unsupported
from weightsync.format.envelope import Envelope
from weightsync.format.keys import LATEST
from weightsync.format.moves import Move
from weightsync.format.names import check_plain
from weightsync.format.refs import VersionRef
from weightsync.trust.policy import role_of_channel

_AGAIN = "look at what it is now, and decide again"


@dataclass(frozen=True)
class MovePlan:
    """A move, signed where keys are in use, that nobody has written yet."""

    move: Move
    envelope: Envelope = field(repr=False)

    @property
    def expected_sequence(self) -> int:
        """Where the channel was when it was made."""
        return self.move.sequence - 1


class ForeignMover:
    """Swaps in moves that others have made."""

    def __init__(self, ctx: Context, reader: Reader, writer: MoveWriter, retractor: Retractor) -> None:
        self._ctx = ctx
        self._reader = reader
        self._writer = writer
        self._retractor = retractor

    def apply(self, channel: str, record: bytes, expected_sequence: int) -> Head:
        """The head after the move in `record`. Doing it again gives the same head (its etag `REPLACED` when others have moved on since).

        Raises `Invalid` for a move that is malformed, not signed as demanded, or not a promotion or rollback of this run's channel;
        `Conflict` when the channel is not at `expected_sequence`; `NotFound`, `Compacted`, `OutcomeUnknown` as `move.Mover.move`.
        """
        move, envelope = self._parse(check_plain(channel, "channel"), record)
        if move.sequence != expected_sequence + 1:
            raise Invalid(f"the move has sequence {move.sequence}, which does not follow {expected_sequence}", remedy="make it anew")
        latest = self._reader.latest()
        seen = latest if channel == LATEST else self._reader.head(channel)
        done = self._done_before(seen, move, envelope)
        if done is None:
            self._check(latest, seen, move)
            done = self._write(seen, move, envelope)
        self._retractor.check(channel, move.version, move.who)
        return done

    def _parse(self, channel: str, record: bytes) -> tuple[Move, Envelope]:
        what = f"the move sent for channel {channel!r}"
        try:
            envelope = self._ctx.policy.check(Envelope.parse(record, what), role_of_channel(channel), what)
            return Move.from_envelope(envelope, run=self._ctx.run, channel=channel), envelope
        except (Corrupt, Unsupported) as error:
            raise Invalid(error.message, remedy=error.remedy or "make it with plan_move of the same release") from error

    def _done_before(self, seen: Head | None, move: Move, envelope: Envelope) -> Head | None:
        """The head when the very same move has won already. Raises `Conflict` when another has the sequence."""
        if seen is None or seen.move.sequence < move.sequence:
            return None
        if seen.digest == envelope.digest:
            return seen
        *_, (taken, by) = self._reader.history(seen, down_to=move.sequence)
        if by != envelope.digest:
            raise Conflict(f"sequence {move.sequence - 1} was expected, but {winner(taken)}", remedy=_AGAIN)
        return Head(move, envelope.digest, len(envelope.data), REPLACED, move.expires_ms, envelope.data)

    def _check(self, latest: Head, seen: Head | None, move: Move) -> None:
        self._check_place(seen, move)
        self._check_numbers(latest, seen, move)
        found = self._reader.find_move(latest, move.version)
        if found.manifest is None or found.manifest != move.manifest:
            raise Invalid(f"version {move.version} of run {self._ctx.run!r} has another manifest than the move says")
        look(self._ctx, move.version)
        self._reader.manifest(VersionRef(found.version, found.manifest.digest))
        if not move.who.strip():
            raise Invalid("the move does not say who makes it", remedy="say who moves the channel, for the record")

    def _check_place(self, seen: Head | None, move: Move) -> None:
        if (seen.move.sequence if seen else 0) != move.sequence - 1:
            now = winner(seen.move) if seen else f"channel {move.channel!r} does not exist"
            raise Conflict(f"sequence {move.sequence - 1} was expected, but {now}", remedy=_AGAIN)
        if move.previous != (seen.ref if seen else None):
            raise Invalid(f"the move does not follow move {move.sequence - 1} of channel {move.channel!r} as it stands", remedy=_AGAIN)

    def _check_numbers(self, latest: Head, seen: Head | None, move: Move) -> None:
        """What `move.Mover` would have written. An operator's `highest` may lag behind a publisher who is at work."""
        now = seen.move if seen else None
        if move.epoch != (now.epoch if now else 0) + (move.channel == LATEST):
            raise Invalid(f"the move has epoch {move.epoch}, which does not follow that of channel {move.channel!r}", remedy=_AGAIN)
        least = max(move.version, now.highest if now else 0)
        if not least <= move.highest <= latest.move.highest:
            raise Invalid(f"the move says that the highest version is {move.highest}, but it is {latest.move.highest}", remedy=_AGAIN)
        if now and move.channel != LATEST and now.version == move.version and move.expires_ms == now.expires_ms:
            raise Invalid(f"channel {move.channel!r} points to version {move.version} already", remedy="nothing needs to be done")

    def _write(self, seen: Head | None, move: Move, envelope: Envelope) -> Head:
        try:
            self._ctx.ensure(self._ctx.keys.log(move.channel, move.sequence, move.write_id), envelope.data)
        except AlreadyExists as error:
            raise Invalid(f"write id {move.write_id} of the move is taken: {error.message}", remedy="make it anew") from error
        try:
            return self._writer.swap(seen, move, envelope)
        except Fenced as error:  # an operator holds no epoch that could be lost: somebody was faster
            raise Conflict(error.message, remedy=_AGAIN) from error
