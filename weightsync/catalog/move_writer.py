"""Making a move: sign it, write its log record, swap the head."""

from weightsync.catalog.context import Context
from weightsync.catalog.read import Reader
from weightsync.catalog.signing import next_move
from weightsync.catalog.swap import Swap
from weightsync.catalog.values import Change, Head
from weightsync.errors import AlreadyExists
from weightsync.format.envelope import Envelope
from weightsync.format.moves import Move


class MoveWriter:
    """Writes moves of one run. Safe to use from many threads."""

    def __init__(self, ctx: Context, reader: Reader) -> None:
        self._ctx = ctx
        self._reader = reader

    def move(self, seen: Head | None, change: Change) -> Head:
        """The head after the move that follows `seen`. Raises as `Swap.run`, and `Denied` without the key."""
        backoff = self._ctx.backoff()
        while True:
            move, envelope = next_move(self._ctx, seen, change)
            try:
                self._ctx.ensure(self._ctx.keys.log(change.channel, move.sequence, move.write_id), envelope.data)
            except AlreadyExists as error:  # a torn write of our own: nobody else draws our write id
                backoff.wait(error)
                continue
            return self.swap(seen, move, envelope)

    def swap(self, seen: Head | None, move: Move, envelope: Envelope) -> Head:
        """The head after `move`, whose log record stands already."""
        return Swap(self._ctx, self._reader, seen, move, envelope).run()
