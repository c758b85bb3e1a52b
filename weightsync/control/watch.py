"""Watching a channel from a client: reconnects at random times, goes on after the last event, gives up only on what waiting cannot mend."""

import logging
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc

from weightsync.clock import jitter
from weightsync.control.convert import from_move, is_whole
from weightsync.control.dial import Connection
from weightsync.control.statuses import error_of
from weightsync.errors import Corrupt, Denied, OutcomeUnknown, Unavailable, WeightsyncError
from weightsync.format.moves import Move
from weightsync.v1 import versions_pb2 as pb

logger = logging.getLogger(__name__)

PATH = "/weightsync.v1.VersionService/WatchVersions"
SILENCE_S = 35.0  # three bookmarks missed: the stream is dead
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 15.0
WAITING = 256  # events read ahead; then the server waits


@dataclass(frozen=True)
class Moved:
    """The channel was moved. `digest` is that of the move's body, and was compared."""

    move: Move
    digest: str

    @property
    def sequence(self) -> int:
        """The move's."""
        return self.move.sequence


@dataclass(frozen=True)
class Bookmark:
    """Nothing is missing up to `sequence`, and the server lives."""

    sequence: int


Event = Moved | Bookmark


class Watch:
    """Events in order, each move once. Iterate, or ask with `next`; close it from any thread.

    Raises `Compacted` (`HistoryCompacted`: start anew from its `sequence`), `NotFound`, `Denied`, `Invalid`, `Unsupported`, `Corrupt` for
    a server that breaks its promises. An event is news, not proof: who acts on it reads the store.
    """

    def __init__(self, connection: Connection, run: str, channel: str, after_sequence: int | None, silence_s: float = SILENCE_S) -> None:
        self._connection, self._run, self._channel = connection, run, channel
        self._silence_s = silence_s
        self._position = after_sequence
        self._events: queue.Queue[Event | WeightsyncError] = queue.Queue(WAITING)
        self._closed = threading.Event()
        self._call: Any = None
        self.connected = False  # whether a stream stands right now
        self._thread = threading.Thread(target=self._run_streams, name=f"watch-{channel}", daemon=True)
        self._thread.start()

    @property
    def position(self) -> int | None:
        """The sequence after which the next event comes; None before the first message."""
        return self._position

    def next(self, timeout_s: float | None = None) -> Event | None:
        """The next event; None when there is none for so long, or the watch was closed."""
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(event, WeightsyncError):
            if self._closed.is_set():
                return None
            self._closed.set()
            raise event
        return event

    def __iter__(self) -> Iterator[Event]:
        while (event := self.next()) is not None:
            yield event

    def close(self) -> None:
        """Ends the watch; whoever waits in `next` gets None."""
        self._closed.set()
        call = self._call
        if call is not None:
            call.cancel()
        self._thread.join(timeout=5.0)
        with suppress(queue.Full):  # then nobody waits for it
            self._events.put_nowait(Unavailable("closed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------------- the reading thread

    def _run_streams(self) -> None:
        wait_s = FIRST_WAIT_S
        while not self._closed.is_set():
            before = self._position
            try:
                self._stream()
            except WeightsyncError as error:
                if not _mends(error):
                    self._put(error)
                    return
                logger.info("watch of channel %r is interrupted: %s", self._channel, error)
            finally:
                self.connected = False
            wait_s = FIRST_WAIT_S if self._position != before else min(LONGEST_WAIT_S, 2 * wait_s)
            self._closed.wait(jitter(wait_s))

    def _stream(self) -> None:
        request = pb.WatchVersionsRequest(run=self._run, channel=self._channel, after_sequence=self._position)
        call = self._call = self._connection.stream(PATH, request, pb.WatchVersionsResponse)
        if self._closed.is_set():
            call.cancel()
        watchdog = _Watchdog(self._silence_s, call)
        try:
            for message in call:
                watchdog.pat()
                self.connected = True
                event = self._event(message)
                if event is not None:
                    self._put(event)
        except grpc.RpcError as error:
            raise error_of(error, self._connection.address) from None
        finally:
            watchdog.stop()
            call.cancel()

    def _event(self, message: pb.WatchVersionsResponse) -> Event | None:
        if message.HasField("bookmark"):
            sequence = message.bookmark.sequence
            if self._position is not None and sequence != self._position:
                raise Corrupt(
                    f"the watch is at sequence {self._position}, and the server says {sequence}", remedy="do not trust this server"
                )
            self._position = sequence
            return Bookmark(sequence)
        moved = message.moved
        if self._position is not None and moved.move.sequence != self._position + 1:
            raise Corrupt(
                f"sequence {moved.move.sequence} was sent after {self._position}: the watch has a gap or a repetition",
                remedy="do not trust this server",
            )
        if not is_whole(moved.move, moved.move_digest) or (moved.move.run, moved.move.channel) != (self._run, self._channel):
            raise Corrupt(
                f"move {moved.move.sequence} does not match its digest, or is another channel's", remedy="do not trust this server"
            )
        self._position = moved.move.sequence
        return Moved(from_move(moved.move), moved.move_digest)

    def _put(self, event: Event | WeightsyncError) -> None:
        while not self._closed.is_set():
            try:
                self._events.put(event, timeout=0.5)
                return
            except queue.Full:
                continue


class _Watchdog:
    """Cancels a call from which nothing has come for too long."""

    def __init__(self, silence_s: float, call: Any) -> None:
        self._silence_s, self._call = silence_s, call
        self._patted = threading.Event()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="watch-watchdog", daemon=True).start()

    def pat(self) -> None:
        """Something came."""
        self._patted.set()

    def stop(self) -> None:
        """No longer wanted."""
        self._stopped.set()
        self._patted.set()

    def _run(self) -> None:
        while self._patted.wait(self._silence_s):
            self._patted.clear()
            if self._stopped.wait(self._silence_s / 4):
                return
        self._call.cancel()


def _mends(error: WeightsyncError) -> bool:
    return isinstance(error, Unavailable) and not isinstance(error, Denied | OutcomeUnknown)
