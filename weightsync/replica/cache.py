"""Objects that were verified once, kept on this host under their digests: a restart or a rebuild need not fetch them again.

Nothing in it is trusted: what is read is hashed, in the very memory that is handed out. Losing it costs bytes on the wire, never
correctness, so a full disk only means that less is kept. Several processes may share one directory.
"""

import logging
import os
import re
import threading
from pathlib import Path

from blake3 import blake3

from weightsync.clock import SYSTEM, Clock
from weightsync.errors import WeightsyncError
from weightsync.format.refs import Ref
from weightsync.replica.directory import TEMPORARY, PrivateDirectory, read_exactly
from weightsync.store.api import Buffer

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[0-9a-f]{64}")
_STALE_S = 3600.0  # a writer that has not renamed its file by then was killed


class ObjectCache:
    """At most `max_bytes` of objects in the private `directory`; the ones not used for longest go first. Safe from many threads."""

    def __init__(self, directory: Path, max_bytes: int, *, clock: Clock = SYSTEM) -> None:
        self.max_bytes = max_bytes
        self._directory = PrivateDirectory(directory)
        self._lock = threading.Lock()
        self._sizes = self._scan(clock)  # oldest use first

    def _scan(self, clock: Clock) -> dict[str, int]:
        found: list[tuple[float, str, int]] = []
        for name in self._directory.names():
            try:
                status = (self._directory.path / name).lstat()
            except FileNotFoundError:
                continue
            if name.startswith(TEMPORARY) and clock.now_s() - status.st_mtime > _STALE_S:
                self._directory.remove(name)
            elif _NAME.fullmatch(name):
                found.append((status.st_mtime, name, status.st_size))
        return {name: size for _, name, size in sorted(found)}

    @property
    def nbytes(self) -> int:
        """Bytes kept."""
        with self._lock:
            return sum(self._sizes.values())

    def __contains__(self, digest: str) -> bool:
        """Whether an object is here, as far as is known without looking at it."""
        with self._lock:
            return digest in self._sizes

    def get(self, ref: Ref) -> bytes | None:
        """The object, verified; None when it is not here. A damaged one is dropped."""
        try:
            data = self._read(ref)
        except (OSError, WeightsyncError) as error:
            _log.warning("cached object %s cannot be read: %s", ref.digest[:12], error)
            data = b""
        if data is None:
            return None
        if len(data) != ref.nbytes or blake3(data).hexdigest() != ref.digest:
            _log.warning("cached object %s was damaged and is fetched again", ref.digest[:12])
            self._drop(ref.digest)
            return None
        with self._lock:
            self._sizes.pop(ref.digest, None)
            self._sizes[ref.digest] = ref.nbytes
        return data

    def put(self, ref: Ref, data: Buffer) -> None:
        """Keeps an object that was verified; makes room by dropping others. Failing to is only logged."""
        if ref.nbytes > self.max_bytes:
            return
        for digest in self._make_room(ref):
            self._drop(digest)
        try:
            self._directory.replace(ref.digest, data, sync=False)
        except (OSError, WeightsyncError) as error:
            _log.warning("object %s is not kept: %s", ref.digest[:12], error)
            with self._lock:
                self._sizes.pop(ref.digest, None)

    def close(self) -> None:
        """Closes the directory."""
        self._directory.close()

    def _read(self, ref: Ref) -> bytes | None:
        try:
            fd = self._directory.open(ref.digest, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            if os.fstat(fd).st_size != ref.nbytes:
                return b""
            data = read_exactly(fd, ref.nbytes)
            os.utime(fd)
            return data
        finally:
            os.close(fd)

    def _make_room(self, ref: Ref) -> list[str]:
        with self._lock:
            self._sizes.pop(ref.digest, None)
            excess = sum(self._sizes.values()) + ref.nbytes - self.max_bytes
            dropped = []
            for digest, size in self._sizes.items():
                if excess <= 0:
                    break
                excess -= size
                dropped.append(digest)
            for digest in dropped:
                del self._sizes[digest]
            self._sizes[ref.digest] = ref.nbytes
        return dropped

    def _drop(self, digest: str) -> None:
        with self._lock:
            self._sizes.pop(digest, None)
        try:
            self._directory.remove(digest)
        except WeightsyncError as error:
            _log.warning("cached object %s stays: %s", digest[:12], error)
