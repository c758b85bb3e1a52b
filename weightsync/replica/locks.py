"""Who may do what with a replica's directory: one writer; readers keep the writer from changing the image in place.

Both are advisory `flock`s, which end with the process, however it ends.
"""

import fcntl
import os

from weightsync.clock import Clock
from weightsync.errors import Conflict
from weightsync.replica.directory import PrivateDirectory
from weightsync.replica.state import LOCK, READERS

_POLL_S = 0.02


class WriterLock:
    """Held by the one process that may change the directory. Raises `Conflict` naming the other's process id."""

    def __init__(self, directory: PrivateDirectory) -> None:
        self._fd = directory.open(LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise Conflict(
                f"replica {str(directory.path)!r} is in use by process {holder}", remedy="stop that one, or use another directory"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Lets others in."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ReadersLock:
    """Shared by readers of the image, exclusive while it is changed in place."""

    def __init__(self, directory: PrivateDirectory, clock: Clock) -> None:
        self._where = str(directory.path)
        self._clock = clock
        self._fd = directory.open(READERS, os.O_RDWR | os.O_CREAT)

    def acquire(self, *, exclusive: bool, wait_s: float) -> None:
        """Raises `Conflict` when others still hold it after `wait_s`."""
        until = self._clock.monotonic_s() + wait_s
        kind = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB
        while True:
            try:
                fcntl.flock(self._fd, kind)
                return
            except BlockingIOError:
                if self._clock.monotonic_s() >= until:
                    break
            self._clock.sleep_s(_POLL_S)
        if exclusive:
            raise Conflict(
                f"a reader has held the image in {self._where!r} for {wait_s:g} s", remedy="let readers copy and close, then retry"
            )
        raise Conflict(f"the image in {self._where!r} is being changed", remedy="try again in a moment")

    def release(self) -> None:
        """Gives it up."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Gives it up for good."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
