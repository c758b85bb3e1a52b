"""The swap of a head, settled by reading back: the only place where a run's truth changes.

A reply may be lost, a request repeated on the way, or another writer may win. Whatever the store answered: a move has won if and only if
its write id stands in the history that the head reaches. The swap is tried again only while the head is still the move that it was built
on (renewed or not); repeating it with the same write id is harmless even if an earlier attempt still arrives.
"""

from weightsync.catalog.context import Context
from weightsync.catalog.history import winner
from weightsync.catalog.read import Reader
from weightsync.catalog.values import REPLACED, Head
from weightsync.errors import Conflict, Corrupt, Denied, Fenced, NoSpace, OutcomeUnknown, Unavailable, WeightsyncError
from weightsync.format.envelope import Envelope
from weightsync.format.keys import LATEST
from weightsync.format.moves import Move
from weightsync.store.retry import Backoff


class Swap:
    """Moves a channel from `seen` (None: it does not exist) to `move`, whose log record stands already."""

    def __init__(self, ctx: Context, reader: Reader, seen: Head | None, move: Move, envelope: Envelope) -> None:
        self._ctx = ctx
        self._reader = reader
        self._seen = seen
        self._move = move
        self._envelope = envelope
        self._etag = seen.etag if seen else None
        self._unsure = False  # whether an attempt may have been applied, or may still be

    def run(self) -> Head:
        """The head after the move; its etag is `REPLACED` when it has won and others have moved on since.

        Raises `Fenced`, or `Conflict` naming the winner; `OutcomeUnknown` when it could not be settled in time (run the same move again);
        and what the store raised where certainly nothing was written.
        """
        backoff = self._ctx.backoff()
        try:
            while True:
                outcome = self._write()
                if isinstance(outcome, Head):
                    return outcome
                won = self._judge(self._ctx.retrying(lambda: self._reader.head(self._move.channel)))
                if won is not None:
                    return won
                self._wait(backoff, outcome)
        except Unavailable as error:
            if not self._unsure:
                raise
            raise OutcomeUnknown(
                f"whether {winner(self._move)} could not be found out: {error.message}",
                remedy="when the store answers again, settle it by repeating the same move, or start anew from what the head says",
            ) from error

    def _write(self) -> Head | WeightsyncError:
        """The new head when the store has confirmed the write, else why it has not."""
        if self._etag == REPLACED:
            return Conflict(f"sequence {self._move.sequence} of channel {self._move.channel!r} is taken")
        try:
            etag = self._ctx.heads.write(self._ctx.keys.head(self._move.channel), self._envelope.data, self._etag)
        except (Conflict, Unavailable) as error:
            # A refusal may be that of a repetition whose first attempt was applied.
            self._unsure |= isinstance(error, Conflict | OutcomeUnknown)
            return error
        return self._won(etag)

    def _won(self, etag: str) -> Head:
        return Head(self._move, self._envelope.digest, len(self._envelope.data), etag, self._move.expires_ms, self._envelope.data)

    def _wait(self, backoff: Backoff, failure: WeightsyncError) -> None:
        if isinstance(failure, Denied | NoSpace):
            raise failure
        try:
            backoff.wait(failure)
        except Conflict as error:  # refused again and again by a store that shows no reason for it
            raise Unavailable(f"{error.message}, yet it reads as before", remedy="retry when the store has caught up") from error

    def _judge(self, now: Head | None) -> Head | None:
        """The head when we have won, None when the head is still the one before us. Raises when we have lost."""
        if now is not None and now.move.sequence >= self._move.sequence:
            return self._look_up(now)
        if now is not None and self._seen is not None:
            if now.digest == self._seen.digest:
                self._etag = now.etag
            elif now.move.sequence == self._seen.move.sequence:
                raise Corrupt(
                    f"{self._ctx.name(self._ctx.keys.head(self._move.channel))} holds another move {now.move.sequence} than before",
                    remedy="somebody rewrote the history: stop all writers and restore the store",
                )
        return None  # an older head, or none where there was one: an answer from the past

    def _look_up(self, now: Head) -> Head:
        """Who made the move with our sequence? Its history tells, however far the head has moved on."""
        if now.digest == self._envelope.digest:
            return now
        *_, (taken, by) = self._reader.history(now, down_to=self._move.sequence)
        if by == self._envelope.digest:
            return self._won(REPLACED)
        raise self._lost(now.move, taken)

    def _lost(self, now: Move, taken: Move) -> WeightsyncError:
        if self._move.channel == LATEST and now.epoch > self._move.epoch:
            return Fenced(
                f"run {self._ctx.run!r} has a newer publisher (epoch {now.epoch}, ours was {self._move.epoch}): {winner(taken)}",
                remedy="stop this one; to take over again, start it anew",
            )
        return Conflict(f"somebody was faster: {winner(taken)}", remedy="look at what it is now, and decide again")
