"""Regular files that are read by position. Never mapped: a file cut while it is mapped kills the process with SIGBUS."""

import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple, NoReturn

from weightsync.errors import Denied, Invalid, NotFound, Unavailable


class Stamp(NamedTuple):
    """What tells one state of a file from another."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int


class InputFile:
    """An open file, and its state at that time. Its descriptor keeps it readable after a rename or an unlink."""

    def __init__(self, path: Path) -> None:
        """Raises `NotFound`, `Denied`, `Invalid` (no regular file), `Unavailable`."""
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would block for ever
        except OSError as error:
            refuse(path, error)
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(self._descriptor)
            raise Invalid(f"{str(path)!r} is not a regular file")
        self.stamp = _stamp(found)

    @property
    def size_bytes(self) -> int:
        """Size when it was opened."""
        return self.stamp.size_bytes

    def read_into(self, into: memoryview, offset: int) -> None:
        """Fills `into` with the bytes from `offset` on. Raises `Invalid` when the file ends before that, `Unavailable`."""
        done = 0
        while done < len(into):
            try:
                count = os.preadv(self._descriptor, [into[done:] if done else into], offset + done)
            except OSError as error:
                refuse(self.path, error)
            if count == 0:
                raise Invalid(
                    f"{str(self.path)!r} was cut while it was read: it ends at {offset + done}, not {self.size_bytes}",
                    remedy="publish a checkpoint only when it is complete, and do not write to it meanwhile",
                )
            done += count

    def read(self, nbytes: int, offset: int = 0) -> bytes:
        """A copy of `nbytes` bytes."""
        data = bytearray(nbytes)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def check_unchanged(self) -> None:
        """Raises `Invalid` if the file was written to since it was opened."""
        if _stamp(os.fstat(self._descriptor)) != self.stamp:
            raise Invalid(
                f"{str(self.path)!r} changed while it was read: what was read may mix two states",
                remedy="publish a checkpoint only when it is complete, and do not write to it meanwhile",
            )

    def close(self) -> None:
        """Closes the descriptor; a second time is fine."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def refuse(path: Path, error: OSError) -> NoReturn:
    """Raises the error of this library that says what to do about `error`."""
    reason = f"{str(path)!r} cannot be read: {os.strerror(error.errno) if error.errno else error}"
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        raise NotFound(reason, remedy="check the path") from error
    if error.errno in (errno.EACCES, errno.EPERM):
        raise Denied(reason, remedy="give this user read permission") from error
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise Unavailable(reason, remedy="raise the limit of open files (ulimit -n)") from error
    raise Unavailable(reason, remedy="check the disk or the network file system, then retry") from error


def _stamp(found: os.stat_result) -> Stamp:
    return Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
