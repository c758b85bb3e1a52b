"""Directories under a root, reached segment by segment without following a symbolic link."""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from weightsync.errors import Invalid

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def opened(root: Path, segments: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """A descriptor of the directory `segments` under `root`, closed at the end; `make` creates what is missing.

    Only `root` itself may be a symbolic link. A directory made here is durable before the descriptor is handed out. Raises `OSError`;
    `Invalid` for a symbolic link on the way.
    """
    if make:
        root.mkdir(parents=True, exist_ok=True)
    here = os.open(root, _OPEN)
    try:
        for segment in segments:
            below = _step(here, segment, make=make)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def _step(above: int, segment: str, *, make: bool) -> int:
    try:
        return _enter(above, segment)
    except FileNotFoundError:
        if not make:
            raise
    # Another writer may make it, or the collector remove it again, in between: the caller starts over on ENOENT.
    with suppress(FileExistsError):
        os.mkdir(segment, dir_fd=above)
        os.fsync(above)
    return _enter(above, segment)


def _enter(above: int, segment: str) -> int:
    try:
        return os.open(segment, _OPEN | os.O_NOFOLLOW, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(above, segment):
            raise Invalid(f"{segment!r} on the way to an object is a symbolic link", remedy="replace it by a directory") from error
        raise


def _is_link(above: int, segment: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(segment, dir_fd=above, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def prune(root: Path, segments: Sequence[str]) -> None:
    """Removes the directory `segments` and those above it, up to `root`, as far as they are empty."""
    for end in range(len(segments), 0, -1):
        try:
            with opened(root, segments[: end - 1]) as above:
                os.rmdir(segments[end - 1], dir_fd=above)
        except OSError:  # not empty, or gone already
            return


def entries(directory: int, begin: str) -> list[tuple[str, bool]]:
    """(name, is a directory) of what an object store may show in `directory`, names starting with `begin`, in the order of whole keys."""
    found = []
    with os.scandir(directory) as scan:
        for entry in scan:
            if entry.name.startswith(".") or not entry.name.startswith(begin):
                continue
            if entry.is_dir(follow_symlinks=False):
                found.append((entry.name, True))
            elif entry.is_file(follow_symlinks=False):
                found.append((entry.name, False))
    # Keys below a directory continue with "/", which sorts after "-" and "." but before letters and digits.
    return sorted(found, key=lambda item: item[0] + "/" * item[1])
