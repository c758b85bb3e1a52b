"""Versions as directories: `DIR/<N>/` holds one, the symbolic link `DIR/current` names the one to load.

    DIR/current -> 7        switched by rename: a loader that follows it finds a whole version, always
    DIR/7/ DIR/6/           the last few
    DIR/.weightsync         which of them are ours, and which version each holds
    DIR/.lock               one writer

A version directory appears whole (written beside, synced, renamed) and before the link names it. What a killed writer left goes at the
next start. Directories that are not ours are never touched.
"""

import fcntl
import json
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weightsync.clock import new_write_id
from weightsync.errors import Conflict, Invalid, NotFound
from weightsync.failpoints import failpoint
from weightsync.format.refs import VersionRef
from weightsync.replica.directory import read_exactly
from weightsync.store.oserrors import named_errors

logger = logging.getLogger(__name__)

CURRENT = "current"
_BOOK = ".weightsync"
_LOCK = ".lock"
_MAX_BOOK_BYTES = 1 << 20
_LEFT = re.compile(r"\.(trash|link|book)-[0-9a-f]{16}|\.[0-9]+\.restoring-[0-9a-f]{16}")


@dataclass
class _Book:
    """Versions that are ours, oldest delivery first; `making` is one that may be there in part or whole."""

    kept: list[VersionRef] = field(default_factory=list)
    making: VersionRef | None = None

    def to_text(self) -> str:
        making = self.making.to_body() if self.making else None
        return json.dumps({"format": 1, "kept": [ref.to_body() for ref in self.kept], "making": making})

    @classmethod
    def parse(cls, text: str) -> "_Book":
        value = json.loads(text)
        making = value["making"]
        return cls([_ref(entry) for entry in value["kept"]], _ref(making) if making else None)


class VersionDirectories:
    """Versions in `directory`, made if missing, of which the last `keep` stay. Not for several threads at once.

    Raises `Conflict` while another process writes there, `Invalid` where something of somebody else's is in the way.
    """

    def __init__(self, directory: Path, *, keep: int = 2, look_only: bool = False) -> None:
        """`look_only`: without the lock, since nothing will be changed."""
        if keep < 1:
            raise Invalid(f"keeping {keep} versions", remedy="keep at least one")
        self.path = directory
        self._directory = directory
        self._keep = keep
        with named_errors(f"output directory {str(directory)!r}"):
            self._lock = -1
            if look_only:
                self._book = self._read_book()
                return
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = self._acquire()
            self._book = self._read_book()
            self._clean()
            self._prune()

    @property
    def version(self) -> VersionRef | None:
        """What `current` names, if it is ours and there."""
        name = self._current()
        held = next((ref for ref in self._book.kept if str(ref.version) == name), None)
        return held if held and (self._directory / str(held.version)).is_dir() else None

    def kept(self, ref: VersionRef) -> bool:
        """Whether that version is there, whole."""
        return ref in self._book.kept and self.at(ref).is_dir()

    def at(self, ref: VersionRef) -> Path:
        """Where a version is, or would be."""
        return self._directory / str(ref.version)

    def write(self, ref: VersionRef, fill: Callable[[Path], object]) -> None:
        """Lets `fill` make the directory of a version, at once or not at all; `current` stays. Raises as `fill`, `Invalid`, `Denied`."""
        target = self.at(ref)
        with named_errors(f"output directory {str(self._directory)!r}"):
            self._check(target)
            self._write_book(_Book([kept for kept in self._book.kept if kept.version != ref.version], ref))
            if target.exists():
                self._discard(target)
            fill(target)
            failpoint("subscribe.out_written")

    def switch(self, ref: VersionRef) -> None:
        """Lets `current` name a version that was written, and removes what is beyond `keep`."""
        with named_errors(f"output directory {str(self._directory)!r}"):
            self._write_book(_Book([*(kept for kept in self._book.kept if kept.version != ref.version), ref]))
            self._switch(str(ref.version))
            failpoint("subscribe.switched")
            self._prune()

    def forget(self, ref: VersionRef) -> None:
        """Removes a version that `current` does not name."""
        with named_errors(f"output directory {str(self._directory)!r}"):
            if self._current() != str(ref.version):
                self._discard(self.at(ref))
                self._write_book(_Book([kept for kept in self._book.kept if kept != ref]))

    def hide(self) -> None:
        """Takes `current` away: who follows it finds nothing."""
        with named_errors(f"output directory {str(self._directory)!r}"):
            if self._current() is not None:
                (self._directory / CURRENT).unlink()
                self._sync()

    def close(self) -> None:
        """Lets other writers in."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _check(self, target: Path) -> None:
        current = self._directory / CURRENT
        if current.exists() and not current.is_symlink():
            raise Invalid(f"{str(current)!r} is not a symbolic link", remedy="name an empty directory")
        if not os.path.lexists(target):
            return
        ours = {kept.version for kept in self._book.kept} | ({self._book.making.version} if self._book.making else set())
        if int(target.name) not in ours:
            raise Invalid(f"{str(target)!r} exists and was not written by this command", remedy="name an empty directory")
        if self._current() == target.name:
            raise Invalid(
                f"{str(target)!r} is in use and holds another version of the same number", remedy="name another directory for this run"
            )

    def _current(self) -> str | None:
        try:
            return str((self._directory / CURRENT).readlink())
        except OSError:
            return None

    def _switch(self, name: str) -> None:
        link = self._directory / f".link-{new_write_id()}"
        link.symlink_to(name)
        link.rename(self._directory / CURRENT)
        self._sync()

    def _prune(self) -> None:
        """Removes what is beyond `keep`. A failure costs space only: the version is delivered."""
        current = self._current()
        gone = [ref for ref in self._book.kept[: -self._keep] if str(ref.version) != current]
        kept = [ref for ref in self._book.kept if ref not in gone]
        try:
            for ref in gone:
                self._discard(self._directory / str(ref.version))
            if gone:
                self._write_book(_Book(kept))
        except OSError as error:
            logger.warning("old versions stay in %s: %s", self._directory, error)

    def _discard(self, path: Path) -> None:
        """A name that is gone at once, then the files: nobody sees half a version under its number."""
        if not path.exists():
            return
        trash = self._directory / f".trash-{new_write_id()}"
        path.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def _clean(self) -> None:
        for path in self._directory.iterdir():
            if _LEFT.fullmatch(path.name):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def _acquire(self) -> int:
        fd = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise Conflict(
                f"another process writes to {str(self._directory)!r}", remedy="stop it, or name another output directory"
            ) from None
        return fd

    def _read_book(self) -> _Book:
        try:
            return _Book.parse(self._read(_BOOK))
        except NotFound:
            return _Book()
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise Invalid(
                f"{str(self._directory / _BOOK)!r} cannot be read: {error!r}", remedy="remove it and the numbered directories beside it"
            ) from error

    def _read(self, name: str) -> str:
        path = self._directory / name
        with named_errors(f"reading {str(path)!r}"):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)  # never waits for a FIFO
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BOOK_BYTES:
                raise ValueError("it is no plain file, or a huge one")
            return read_exactly(fd, found.st_size).decode("utf-8")
        finally:
            os.close(fd)

    def _write_book(self, book: _Book) -> None:
        temporary = self._directory / f".book-{new_write_id()}"
        with temporary.open("x", encoding="utf-8") as file:
            file.write(book.to_text())
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._directory / _BOOK)
        self._sync()
        self._book = book

    def _sync(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _ref(body: dict[str, Any]) -> VersionRef:
    return VersionRef(int(body["version"]), str(body["manifest"]))
