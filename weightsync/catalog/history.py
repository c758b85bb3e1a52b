"""A channel's history: what its head reaches through `previous`. A version is committed if and only if it is in that of `latest`."""

from collections.abc import Iterable, Iterator

from weightsync.catalog.context import Context
from weightsync.catalog.read_ahead import WINDOW, ReadAhead
from weightsync.catalog.records import read_log
from weightsync.catalog.values import Head
from weightsync.errors import Corrupt, NotFound
from weightsync.format.moves import Move, MoveRef
from weightsync.format.refs import VersionRef
from weightsync.store.retry import RetryPolicy

PATIENT = 8  # reads one by one, before the log is read ahead
LAG = RetryPolicy(attempts=4, deadline_s=10.0)
REMEMBERED = 16_384  # moves; a move never changes, so that going back over the same history costs nothing


class History:
    """Walks back, remembering what it has verified. Safe to use from many threads."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._ahead = ReadAhead(ctx)
        self._known: dict[str, Move] = {}

    def walk(self, head: Head, *, down_to: int = 1) -> Iterator[tuple[Move, str]]:
        """(move, digest) from `head` back to sequence `down_to`, newest first. Reads when asked; on a long way back, ahead and in parallel.

        Raises `Corrupt` naming the log record that is missing or does not follow.
        """
        move, digest = head.move, head.digest
        misses, tried = 0, -1
        while True:
            yield move, digest
            if move.previous is None or move.sequence <= down_to:
                return
            if move.previous.digest not in self._known:
                misses, window = misses + 1, move.previous.sequence // WINDOW
                if misses > PATIENT and window != tried:
                    tried = window
                    self._remember(self._ahead.read(move.channel, move.previous.sequence))
            older, digest = self._read(move.channel, move.previous), move.previous.digest
            self._check(older, move)
            move = older

    def find(self, head: Head, version: int) -> Move | None:
        """The newest move of `latest` that points to `version`; None: not committed. Reads no further back than it must."""
        for move, _ in self.walk(head):
            if move.version == version:
                return move
            if move.highest < version:
                return None
        return None

    def check_logged(self, head: Head) -> None:
        """The log must hold the head's own record as well: the next move will name it. Raises `Corrupt`."""
        self._read_patiently(head.move.channel, head.ref)

    def committed(self, head: Head) -> list[VersionRef]:
        """All committed versions, ascending."""
        found: dict[int, VersionRef] = {}
        for move, _ in self.walk(head):
            if move.manifest is None:
                continue
            ref = found.setdefault(move.version, VersionRef(move.version, move.manifest.digest))
            if ref.manifest != move.manifest.digest:
                raise Corrupt(f"version {move.version} of run {self._ctx.run!r} was committed with two manifests")
        return [found[version] for version in sorted(found)]

    def _read(self, channel: str, ref: MoveRef) -> Move:
        known = self._known.get(ref.digest)
        if known is not None and known.channel == channel:
            return known
        move = self._read_patiently(channel, ref)
        self._remember({ref.digest: move})
        return move

    def _remember(self, moves: dict[str, Move]) -> None:
        if len(self._known) + len(moves) > REMEMBERED:
            self._known.clear()
        self._known.update(moves)

    def _read_patiently(self, channel: str, ref: MoveRef) -> Move:
        """The record stood before the head that names it, but a replica of the store may show it later."""
        backoff = self._ctx.backoff(LAG)
        while True:
            try:
                return self._ctx.retrying(lambda: read_log(self._ctx, channel, ref))
            except NotFound:
                key = self._ctx.keys.log(channel, ref.sequence, ref.write_id)
                lost = Corrupt(
                    f"the history of channel {channel!r} breaks: {self._ctx.name(key)} is missing",
                    remedy="restore that record from a copy of the store",
                )
            backoff.wait(lost)

    def _check(self, older: Move, newer: Move) -> None:
        if older.epoch > newer.epoch or older.highest > newer.highest:
            raise Corrupt(f"move {newer.sequence} of channel {newer.channel!r} goes back behind move {older.sequence}")


def commits(moves: Iterable[Move]) -> Iterator[Move]:
    """Of `latest`'s moves, newest first, those that committed a version: they raised `highest` to it. Claims and rollbacks commit none."""
    newer: Move | None = None
    for move in moves:
        if newer is not None and newer.version == newer.highest > move.highest:
            yield newer
        newer = move
    if newer is not None and newer.version and newer.version == newer.highest:
        yield newer


def winner(move: Move) -> str:
    """Who moved what where, for messages."""
    return f"{move.who!r} moved channel {move.channel!r} to version {move.version} with sequence {move.sequence} (epoch {move.epoch})"
