"""Reading a replica's image from another process of the same user, without a copy.

    with open_image_readonly(Path("/dev/shm/weights")) as reader:
        reader.version, reader.image.tensor("model.embed_tokens.weight")

A reader holds a shared lock for as long as it is open. A change in place waits for it (`Replica(readers_wait_s=...)`), so read or copy,
then close. An image that was replaced by a new one stays whole for those who have it mapped. The writer verified the image; a reader that
wants to see for itself calls `verify`.
"""

from pathlib import Path
from types import TracebackType
from typing import Self

from blake3 import blake3

from weightsync.clock import SYSTEM, Clock
from weightsync.errors import Corrupt, NotFound, Unavailable
from weightsync.format.digests import DigestTable
from weightsync.format.layout import Layout
from weightsync.format.limits import MAX_DIGESTS_BYTES, MAX_LAYOUT_BYTES
from weightsync.format.refs import VersionRef
from weightsync.replica.directory import PrivateDirectory
from weightsync.replica.image import Image
from weightsync.replica.journal import Journal
from weightsync.replica.locks import ReadersLock
from weightsync.replica.parallel import Workers
from weightsync.replica.state import LAYOUT_PREFIX, MAX_STATE_BYTES, STATE, TABLE_PREFIX, State

_ATTEMPTS = 5  # the writer may replace state and image between our looks at the one and the other


class ImageReader:
    """A version being read; made by `open_image_readonly`. Its image's views are read-only and end with `close`."""

    def __init__(self, directory: PrivateDirectory, lock: ReadersLock, state: State) -> None:
        self.layout = Layout.parse(_read(directory, LAYOUT_PREFIX + state.layout, MAX_LAYOUT_BYTES))
        self.image = Image.open(directory, state.image, self.layout, writable=False)
        self._directory, self._lock, self._state = directory, lock, state

    @property
    def version(self) -> VersionRef:
        """Which version it is."""
        return self._state.version

    def verify(self, threads: int = 1) -> list[int]:
        """Numbers of the chunks whose bytes are not what the writer verified."""
        data = _read(self._directory, TABLE_PREFIX + self._state.table, MAX_DIGESTS_BYTES)
        workers = Workers(threads)
        try:
            return self.image.verify(DigestTable.parse(self.layout, data, self._state.root).leaves, workers)
        finally:
            workers.close()

    def close(self) -> None:
        """Unmaps the image and lets the writer go on."""
        self.image.close()
        self._lock.close()
        self._directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_image_readonly(directory: Path, *, wait_s: float = 0.0, clock: Clock = SYSTEM) -> ImageReader:
    """The version held in `directory`.

    Raises `NotFound` where there is none, `Conflict` while it is being changed (after `wait_s`), `Unavailable` where a writer died while
    changing it and none has come back since, `Denied`, `Corrupt`.
    """
    if not directory.is_dir():
        raise NotFound(f"no replica in {str(directory)!r}")
    private = PrivateDirectory(directory)
    try:
        lock = ReadersLock(private, clock)
        try:
            lock.acquire(exclusive=False, wait_s=wait_s)
            return _open(private, lock)
        except BaseException:
            lock.close()
            raise
    except BaseException:
        private.close()
        raise


def _open(directory: PrivateDirectory, lock: ReadersLock) -> ImageReader:
    failure: Corrupt | None = None
    for _ in range(_ATTEMPTS):
        data = directory.read(STATE, MAX_STATE_BYTES)
        if data is None:
            raise NotFound(f"the replica in {str(directory.path)!r} holds no version yet")
        state = State.parse(data)
        if _half_changed(directory, state):
            raise Unavailable(
                f"the writer of {str(directory.path)!r} died while changing the image", remedy="start the subscriber again; it goes back"
            )
        try:
            return ImageReader(directory, lock, state)
        except Corrupt as error:
            failure = error
    raise failure or Corrupt(f"the replica in {str(directory.path)!r} cannot be read")


def _half_changed(directory: PrivateDirectory, state: State) -> bool:
    # The journal of a finished transition, not yet removed, names the state before.
    journal = Journal.open(directory)
    if journal is None:
        return False
    try:
        return journal.base in (state.digest, None)
    finally:
        journal.close()


def _read(directory: PrivateDirectory, name: str, max_bytes: int) -> bytes:
    data = directory.read(name, max_bytes)
    if data is None or blake3(data).hexdigest() != name.partition("-")[2]:
        raise Corrupt(f"{name[:20]} of the replica is missing or damaged")
    return data
