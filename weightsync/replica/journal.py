"""How an image that is being changed in place gets back: the old values of every chunk, written down before the chunk is touched.

    header  magic, digest of the state that it leads back to, XXH3-128 of both
    record  kind, bytes per lane, chunk, lanes, bytes of payload; payload; XXH3-128 of all that
            sparse payload: positions (u32), then the old lanes there      whole payload: the chunk's old bytes

A record is complete before its chunk is written to, so a process killed at any byte leaves at most one cut record, of a chunk that is
still untouched. A chunk may have several records (a path of several steps): they are undone from the last to the first. What has been
undone is hashed before it is believed, so a damaged journal can cost the image but never serve a wrong one.

Nothing is synced: after a power loss, too, hashing the image decides.
"""

import os
import struct
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from weightsync.codec import scatter
from weightsync.errors import Unavailable
from weightsync.replica.directory import PrivateDirectory, read_exactly, write_all
from weightsync.replica.image import Image
from weightsync.replica.state import JOURNAL
from weightsync.store.oserrors import named_errors

_MAGIC = b"WSJRNL01"
_HEADER = struct.Struct("<8s32s")
_RECORD = struct.Struct("<BB2xIIQ")
_DIGEST_BYTES = 16
_SPARSE, _WHOLE = 1, 2


class Record(NamedTuple):
    """One entry, by its place in the file; the payload is `nbytes` from `start` on."""

    kind: int
    lane_bytes: int
    chunk: int
    lanes: int
    nbytes: int
    start: int


class Journal:
    """An open journal file. `append` may be called from many threads."""

    def __init__(self, directory: PrivateDirectory, fd: int) -> None:
        self._directory = directory
        self._fd = fd
        self._lock = threading.Lock()
        self._broken: BaseException | None = None

    @classmethod
    def create(cls, directory: PrivateDirectory, base: str) -> Self:
        """A new journal leading back to the state with digest `base` (hex). Raises `NoSpace`."""
        with named_errors(f"making the journal in {str(directory.path)!r}"):
            directory.remove(JOURNAL)
            fd = directory.open(JOURNAL, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                header = _HEADER.pack(_MAGIC, bytes.fromhex(base))
                write_all(fd, header + xxhash.xxh3_128_digest(header))
            except BaseException:
                os.close(fd)
                directory.remove(JOURNAL)
                raise
        return cls(directory, fd)

    @classmethod
    def open(cls, directory: PrivateDirectory) -> Self | None:
        """The journal that a process left behind, if there is one."""
        try:
            return cls(directory, directory.open(JOURNAL, os.O_RDWR))
        except FileNotFoundError:
            return None

    @property
    def base(self) -> str | None:
        """Digest of the state that it leads back to; None when the header cannot be read."""
        data = read_exactly(self._fd, _HEADER.size + _DIGEST_BYTES)
        header, digest = data[: _HEADER.size], data[_HEADER.size :]
        if len(header) != _HEADER.size or xxhash.xxh3_128_digest(header) != digest:
            return None
        magic, base = _HEADER.unpack(header)
        return base.hex() if magic == _MAGIC else None

    def append_changes(self, chunk: int, positions: NDArray[np.uint32], old: NDArray[Any]) -> None:
        """Records the `old` lanes at `positions`. Raises `NoSpace`; nothing may be written to the chunk then."""
        head = _RECORD.pack(_SPARSE, old.itemsize, chunk, len(positions), positions.nbytes + old.nbytes)
        self._append(head, positions.view(np.uint8).data, old.view(np.uint8).data)

    def append_whole(self, chunk: int, old: memoryview) -> None:
        """Records all bytes of a chunk. Raises as `append_changes`."""
        self._append(_RECORD.pack(_WHOLE, 0, chunk, 0, old.nbytes), old)

    def _append(self, *parts: bytes | memoryview) -> None:
        hasher = xxhash.xxh3_128()
        for part in parts:
            hasher.update(part)
        total = sum(len(part) for part in parts) + _DIGEST_BYTES
        parts = (*parts, hasher.digest())
        with self._lock, named_errors(f"journal in {str(self._directory.path)!r}"):
            if isinstance(self._broken, OSError):  # another thread's: whichever is asked first tells what is wrong
                raise OSError(self._broken.errno, f"{self._broken.strerror}, before this chunk")
            if self._broken is not None:
                raise Unavailable("the journal failed before", remedy="abort this transition")
            try:
                written = os.writev(self._fd, parts)
                if written < total:
                    write_all(self._fd, memoryview(b"".join(parts))[written:])
            except BaseException as error:
                # What was half written would hide every later record.
                self._broken = error
                raise

    def undo(self, image: Image) -> set[int]:
        """Puts the old values back, newest record first, and says which chunks were touched. Stops reading at the first bad record."""
        touched: set[int] = set()
        for record in reversed(list(self._records(image))):
            self.put_back(record, image.chunk(record.chunk))
            touched.add(record.chunk)
        return touched

    def put_back(self, record: Record, target: memoryview) -> None:
        """Writes the old values of one record into its chunk, or into a copy of it."""
        changes = self.changes(record)
        if changes is None:
            target[:] = read_exactly(self._fd, record.nbytes, record.start)
        else:
            scatter(target, *changes)

    def changes(self, record: Record) -> tuple[NDArray[np.uint32], NDArray[Any]] | None:
        """Positions and old lanes of a sparse record; None for a whole one."""
        if record.kind == _WHOLE:
            return None
        payload = read_exactly(self._fd, record.nbytes, record.start)
        positions = np.frombuffer(payload, np.uint32, record.lanes)
        return positions, np.frombuffer(payload, f"<u{record.lane_bytes}", record.lanes, offset=positions.nbytes)

    def by_chunk(self, image: Image) -> dict[int, list[Record]]:
        """The records of each chunk in order, chunks ascending, of a transition that has ended: payloads are not looked at."""
        found: dict[int, list[Record]] = {}
        for record in self._records(image, check=False):
            found.setdefault(record.chunk, []).append(record)
        return dict(sorted(found.items()))

    def _records(self, image: Image, *, check: bool = True) -> Iterator[Record]:
        position, end = _HEADER.size + _DIGEST_BYTES, os.fstat(self._fd).st_size
        while position + _RECORD.size + _DIGEST_BYTES <= end:
            head = read_exactly(self._fd, _RECORD.size, position)
            kind, lane_bytes, chunk, lanes, nbytes = _RECORD.unpack(head)
            record = Record(kind, lane_bytes, chunk, lanes, nbytes, position + _RECORD.size)
            position = record.start + record.nbytes + _DIGEST_BYTES
            if position > end or not _fits(record, image):
                return
            rest = read_exactly(self._fd, record.nbytes + _DIGEST_BYTES, record.start) if check else b""
            if check and xxhash.xxh3_128_digest(head + rest[: record.nbytes]) != rest[record.nbytes :]:
                return
            yield record

    def close(self) -> None:
        """Closes the file and leaves it where it is."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def discard(self) -> None:
        """Removes the journal: there is no way back any more, or no need for one."""
        self.close()
        self._directory.remove(JOURNAL)


def _fits(record: Record, image: Image) -> bool:
    if record.chunk >= len(image.layout.chunks):
        return False
    chunk = image.layout.chunks[record.chunk]
    lane_bytes = chunk.nbytes // chunk.lanes
    if record.kind == _WHOLE:
        return record.nbytes == chunk.nbytes
    return record.kind == _SPARSE and record.lane_bytes == lane_bytes and record.nbytes == record.lanes * (4 + lane_bytes)
