"""`file://`: a directory as a store, for one machine or a shared file system. Needs no server.

An object is one file under its key, never changed in place:

    create   write and sync .tmp/X, link(.tmp/X, key): fails if the key is taken; sync the directory
    swap     write and sync .tmp/X, take the lock, compare the tag, rename(.tmp/X, key); sync the directory

A kill at any point leaves the old object or the new one; so does a power loss, by the two syncs. `put` and `delete` take the lock as well,
so that a swap never loses one of them, but do not sync the directory: nothing relies on them after a power loss.
"""

import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from weightsync.clock import SYSTEM, Clock
from weightsync.errors import AlreadyExists, Conflict, Corrupt, Invalid, NotFound, OutcomeUnknown, Unavailable
from weightsync.failpoints import failpoint
from weightsync.store.api import Buffer, Object, ObjectStore, Stat
from weightsync.store.directories import entries, opened, prune
from weightsync.store.keyrules import split_key, split_prefix
from weightsync.store.oserrors import from_os_error, named_errors
from weightsync.store.temporary import Temporary, remove_stale, written

# Tags of objects up to this size are content hashes; hashing a shard at every look would cost more than reading it. Larger ones are told
# apart by inode and time: a new object is always another inode than the one that it replaces.
HASHED_BYTES = 64 << 10
LOCK = ".lock"
LOCK_WAIT_S = 60.0
_LOCK_POLL_S = 0.002
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # NONBLOCK: a planted FIFO must not hang us
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class FileStore:
    """`ObjectStore` over the directory `root` (absolute), which the first write makes. Safe to share between processes and threads."""

    def __init__(self, root: Path | str, *, clock: Clock = SYSTEM) -> None:
        self._root = Path(root)
        if not self._root.is_absolute():
            raise Invalid(f"store directory {str(root)!r} is not absolute", remedy="give the whole path")
        self._clock = clock
        self._swept = False

    @property
    def url(self) -> str:
        """Where this is."""
        return self._root.as_uri()

    def get(self, key: str, *, max_bytes: int) -> Object:
        """The whole object."""
        with self._reading(key) as (descriptor, found):
            if found.st_size > max_bytes:
                raise Corrupt(f"{self._name(key)} has {found.st_size} bytes, more than the {max_bytes} allowed")
            data = _read(descriptor, found.st_size)
            if len(data) != found.st_size:
                raise Corrupt(f"{self._name(key)} was truncated while it was read", remedy="nothing else may write into a store")
            return Object(data, _etag(found, data))

    def get_if_changed(self, key: str, etag: str, *, max_bytes: int) -> Object | None:
        """The whole object, or None while it still has `etag`."""
        current = self.get(key, max_bytes=max_bytes)
        return None if current.etag == etag else current

    def read_into(self, key: str, into: memoryview, *, start: int = 0) -> None:
        """Fills `into` from `start` on."""
        view = into.cast("B")
        with self._reading(key) as (descriptor, found):
            if found.st_size < start + view.nbytes:
                raise Corrupt(f"{self._name(key)} ends at byte {found.st_size}, before {start + view.nbytes}")
            while view.nbytes:
                count = os.preadv(descriptor, [view], start)
                if not count:
                    raise Corrupt(f"{self._name(key)} was truncated while it was read", remedy="nothing else may write into a store")
                start += count
                view = view[count:]

    def stat(self, key: str) -> Stat:
        """Size and tag."""
        with self._reading(key) as (descriptor, found):
            return _stat(key, descriptor, found)

    def create(self, key: str, data: Buffer) -> str:
        """Writes a new object, durable on return."""
        *above, name = split_key(key)
        # Only saves writing what is there already; the link below decides.
        with suppress(NotFound), self._reading(key):
            raise AlreadyExists(f"{self._name(key)} exists")
        with self._written(key, data) as temporary, self._making(key, above) as directory:
            failpoint("store.file.publish")
            try:
                os.link(temporary.name, name, src_dir_fd=temporary.directory, dst_dir_fd=directory, follow_symlinks=False)
            except FileExistsError as error:
                if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                    raise IsADirectoryError from error
                raise AlreadyExists(f"{self._name(key)} exists") from error
            self._sync(key, directory)
            return _etag(temporary.found, data)

    def swap(self, key: str, data: Buffer, etag: str) -> str:
        """Replaces the object if it still has `etag`, durable on return."""
        *above, name = split_key(key)
        with self._written(key, data) as temporary:
            with self._locked():
                self._check(key, etag)
                with opened(self._root, above) as directory:
                    _replace(temporary, directory, name)
                    self._sync(key, directory)
            return _etag(temporary.found, data)

    def put(self, key: str, data: Buffer) -> str:
        """Writes unconditionally; whole, but not durable on return."""
        *above, name = split_key(key)
        with self._written(key, data) as temporary:
            with self._locked(), self._making(key, above) as directory:
                _replace(temporary, directory, name)
            return _etag(temporary.found, data)

    def list(self, prefix: str) -> Iterator[Stat]:
        """Objects whose key starts with `prefix`, in key order; those that vanish meanwhile are left out."""
        segments, begin = split_prefix(prefix)
        return self._walk(segments, begin)

    def delete(self, key: str) -> None:
        """Removes the object and directories that are empty then."""
        *above, name = split_key(key)
        try:
            with self._locked(), named_errors(f"cannot delete {self._name(key)}"), opened(self._root, above) as directory:
                os.unlink(name, dir_fd=directory)
        except NotFound:
            return
        prune(self._root, above)

    def close(self) -> None:
        """Nothing is held open."""

    def _name(self, key: str) -> str:
        return f"object {key!r} in {self.url}"

    @contextmanager
    def _reading(self, key: str) -> Iterator[tuple[int, os.stat_result]]:
        *above, name = split_key(key)
        with named_errors(f"cannot read {self._name(key)}"), opened(self._root, above) as directory:
            descriptor = os.open(name, _READ, dir_fd=directory)
            try:
                found = os.fstat(descriptor)
                if stat.S_ISDIR(found.st_mode):
                    raise NotFound(f"{self._name(key)} is not there: it is a directory")
                if not stat.S_ISREG(found.st_mode):
                    raise Invalid(f"{self._name(key)} is not a plain file", remedy="remove it: a store holds only plain files")
                yield descriptor, found
            finally:
                os.close(descriptor)

    @contextmanager
    def _written(self, key: str, data: Buffer) -> Iterator[Temporary]:
        with named_errors(f"cannot write {self._name(key)}"):
            if not self._swept:
                remove_stale(self._root, self._clock)
                self._swept = True
            try:
                with written(self._root, data) as temporary:
                    yield temporary
            except FileNotFoundError as error:
                # The collector emptied a directory on the way, or took our file for a dead writer's.
                raise Unavailable(f"{self._name(key)} was not written: its directory was removed meanwhile", remedy="retry") from error

    @contextmanager
    def _making(self, key: str, segments: Sequence[str]) -> Iterator[int]:
        try:
            with opened(self._root, segments, make=True) as directory:
                yield directory
        except NotADirectoryError as error:
            raise Invalid(f"{self._name(key)} lies below another object", remedy="an object's key cannot begin another's") from error
        except IsADirectoryError as error:
            raise Invalid(f"{self._name(key)} is a directory of other objects", remedy="an object's key cannot begin another's") from error

    def _check(self, key: str, etag: str) -> None:
        try:
            current = self.stat(key).etag
        except NotFound as error:
            raise Conflict(f"{self._name(key)} is gone", remedy="read it again and decide again") from error
        if current != etag:
            raise Conflict(f"{self._name(key)} has changed", remedy="read it again and decide again")

    def _sync(self, key: str, directory: int) -> None:
        try:
            failpoint("store.file.published")
            os.fsync(directory)
        except OSError as error:
            reason = from_os_error(error, f"{self._name(key)} is written, but may not survive a power loss")
            raise OutcomeUnknown(reason.message, remedy="check the disk, then read the object back") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with named_errors(f"cannot lock {self.url}"), opened(self._root, []) as root:
            descriptor = os.open(LOCK, _LOCK_FLAGS, 0o666, dir_fd=root)
        try:
            with named_errors(f"cannot lock {self.url}"):
                self._flock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _flock(self, descriptor: int) -> None:
        deadline_s = self._clock.monotonic_s() + LOCK_WAIT_S
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if self._clock.monotonic_s() > deadline_s:
                    message = f"{self.url} has been locked by another process for {LOCK_WAIT_S:.0f} s"
                    raise Unavailable(
                        message, remedy=f"find it with `fuser {self._root / LOCK}`; a stopped process keeps the lock"
                    ) from error
            self._clock.sleep_s(_LOCK_POLL_S)

    def _walk(self, segments: Sequence[str], begin: str) -> Iterator[Stat]:
        try:
            with named_errors(f"cannot list {self.url}"), opened(self._root, segments) as directory:
                found = entries(directory, begin)
        except NotFound:
            return
        for name, is_directory in found:
            if is_directory:
                yield from self._walk([*segments, name], "")
                continue
            with suppress(NotFound, Invalid):  # gone meanwhile; no key of ours
                yield self.stat("/".join([*segments, name]))


def _replace(temporary: Temporary, directory: int, name: str) -> None:
    failpoint("store.file.publish")
    os.rename(temporary.name, name, src_dir_fd=temporary.directory, dst_dir_fd=directory)


def _read(descriptor: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(descriptor, count)  # at most 2 GiB at once
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _etag(found: os.stat_result, data: Buffer) -> str:
    if found.st_size <= HASHED_BYTES:
        return blake3(memoryview(data).cast("B")).hexdigest(length=16)
    return f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"


def _stat(key: str, descriptor: int, found: os.stat_result) -> Stat:
    data = _read(descriptor, found.st_size) if found.st_size <= HASHED_BYTES else b""
    return Stat(key, found.st_size, _etag(found, data), found.st_mtime)


if TYPE_CHECKING:
    _conforms: type[ObjectStore] = FileStore
