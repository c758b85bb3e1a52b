"""Reading a channel's log ahead, in parallel: one record after the other would cost a round trip each.

Only a hint: LIST finds candidates, and what is read is remembered by its digest, so that history takes a move only where the one after it
names exactly that digest.
"""

from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from weightsync.catalog.context import Context
from weightsync.catalog.records import read_move
from weightsync.errors import WeightsyncError
from weightsync.format.limits import MAX_RECORD_BYTES
from weightsync.format.moves import Move

WINDOW = 100  # sequences that share all digits but the last two
THREADS = 16
MAX_CANDIDATES = 1000  # keys looked at for one window: claims that lost leave records too


class ReadAhead:
    """Candidates for the moves before a sequence."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def read(self, channel: str, sequence: int) -> dict[str, Move]:
        """Verified moves of the hundred that `sequence` is in, by digest, as far as they are found. Never raises for the store's sake."""
        if sequence < WINDOW:
            return {}  # their digits are those of all later sequences too
        try:
            keys = self._candidates(channel, sequence)
        except WeightsyncError:
            return {}
        with ThreadPoolExecutor(THREADS, thread_name_prefix="weightsync-log") as pool:
            found = pool.map(lambda key: self._read(channel, key), keys)
            return dict(filter(None, found))

    def _candidates(self, channel: str, sequence: int) -> list[str]:
        prefix = self._ctx.keys.logs(channel, str(sequence // WINDOW))
        keys = []
        for stat in islice(self._ctx.store.list(prefix), MAX_CANDIDATES):
            parsed = self._ctx.keys.parse_log(stat.key)
            if parsed is not None and sequence - WINDOW < parsed[1] <= sequence:
                keys.append(stat.key)
        return keys

    def _read(self, channel: str, key: str) -> tuple[str, Move] | None:
        try:
            move, envelope = read_move(self._ctx, channel, self._ctx.store.get(key, max_bytes=MAX_RECORD_BYTES).data, key)
        except WeightsyncError:
            return None
        return envelope.digest, move
