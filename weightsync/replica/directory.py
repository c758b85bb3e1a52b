"""A private directory and plain files in it: nothing that somebody else could have planted is opened.

The directory is ours alone (mode 0700, our user, no symbolic link). Files are opened relative to its descriptor, never through a symbolic
link, and only if they are regular, ours, not writable by others and have no second name; opening never blocks on a FIFO.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from weightsync.clock import new_write_id
from weightsync.errors import Corrupt, Denied, Invalid
from weightsync.store.api import Buffer
from weightsync.store.oserrors import named_errors

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_OTHERS_WRITE = 0o022
TEMPORARY = ".new-"
WRITE_BYTES = 16 << 20  # of one write: large enough for speed, small enough to report progress


class PrivateDirectory:
    """`path` held open. Made if missing. Raises `Denied`, `Invalid`, `NoSpace`. All names below are of files directly in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with named_errors(f"directory {str(path)!r}"):
            if not path.is_symlink():
                path.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileExistsError):
                    path.mkdir(mode=0o700)
            self._check_type(path)
            self._fd = os.open(path, _DIRECTORY)
        try:
            self._check_owner()
        except BaseException:
            os.close(self._fd)
            raise

    def _check_type(self, path: Path) -> None:
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise Invalid(f"{str(path)!r} is not a directory", remedy="name a plain directory of your own, no symbolic link")

    def _check_owner(self) -> None:
        found = os.fstat(self._fd)
        if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
            raise Denied(
                f"directory {str(self.path)!r} belongs to another user, or others may write to it", remedy="use a directory of mode 0700"
            )
        if found.st_mode & 0o077:
            os.fchmod(self._fd, 0o700)

    def close(self) -> None:
        """Closes the descriptor; harmless when repeated."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def open(self, name: str, flags: int) -> int:
        """A descriptor of the plain file `name`. Raises `FileNotFoundError` as it is, `Denied` or `Invalid` for what is no plain file."""
        where = f"{str(self.path / name)!r}"
        try:
            fd = os.open(name, flags | _SAFE, 0o600, dir_fd=self._fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            kind = self._kind(name)
            if kind is not None and not stat.S_ISREG(kind):
                word = "a symbolic link" if stat.S_ISLNK(kind) else "no regular file"
                raise Denied(f"{where} is {word}", remedy="remove it") from error
            with named_errors(where):
                raise
        try:
            check_plain_file(fd, where)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _kind(self, name: str) -> int | None:
        try:
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode
        except OSError:
            return None

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """The whole file, None when it is missing. Raises `Corrupt` when it is larger than `max_bytes`."""
        try:
            fd = self.open(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            size = os.fstat(fd).st_size
            if size > max_bytes:
                raise Corrupt(f"{str(self.path / name)!r} has {size} bytes, more than {max_bytes}")
            with named_errors(f"reading {str(self.path / name)!r}"):
                return read_exactly(fd, size)
        finally:
            os.close(fd)

    def replace(self, name: str, data: Buffer, *, sync: bool = True, before: Callable[[], None] | None = None) -> None:
        """Writes a whole file under another name and then renames it; calls `before` just before that. Raises `NoSpace`."""
        temporary = f"{TEMPORARY}{new_write_id()}"
        with named_errors(f"writing {str(self.path / name)!r}"), self._removed_on_error(temporary):
            fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                write_all(fd, data)
                if sync:
                    os.fdatasync(fd)
            finally:
                os.close(fd)
            if before is not None:
                before()
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    @contextmanager
    def fresh(self, name: str) -> Iterator[int]:
        """A descriptor of a new file that gets its name when the block ends well. Nothing is synced. Raises `NoSpace`."""
        temporary = f"{TEMPORARY}{new_write_id()}"
        with named_errors(f"writing {str(self.path / name)!r}"), self._removed_on_error(temporary):
            fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                yield fd
            finally:
                os.close(fd)
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    @contextmanager
    def _removed_on_error(self, name: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.remove(name)
            raise

    def remove(self, name: str) -> None:
        """Unlinks a file; a missing one is fine."""
        with named_errors(f"removing {str(self.path / name)!r}"), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def names(self) -> list[str]:
        """What is in the directory."""
        return sorted(os.listdir(self._fd))  # noqa: PTH208  relative to the descriptor


def check_plain_file(fd: int, where: str) -> None:
    """Raises `Denied` unless `fd` is a regular file of ours with one name that nobody else may write to."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise Denied(f"{where} is not a regular file", remedy="remove it")
    if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE or found.st_nlink > 1:
        raise Denied(f"{where} belongs to another user, can be written by others, or has a second name", remedy="remove it")


def read_exactly(fd: int, size: int, start: int = 0) -> bytes:
    """Up to `size` bytes from `start`; fewer only where the file ends."""
    parts = []
    while size and (part := os.pread(fd, min(size, 1 << 30), start)):
        parts.append(part)
        start += len(part)
        size -= len(part)
    return b"".join(parts)


def write_all(fd: int, data: Buffer) -> None:
    """Writes everything, however many calls it takes. Raises `OSError`."""
    view = memoryview(data).cast("B")
    while view.nbytes:
        view = view[os.write(fd, view[:WRITE_BYTES]) :]
