"""The change file: one decoded list of positions and values for all processes of a host, read where it lies.

    0      magic, length of the head, head (sealed JSON), zeros
    4096   for each changed tensor, ascending: positions, values, old values, as its kind says; each from a multiple of 64 bytes
           index: tensor, kind, lanes of each
           sums of the whole new version, uint64 by tensor of the layout

    kind   SPARSE  positions, values, old      IMAGE   nothing: all lanes, as they are in the image
           OLD     old: all lanes, whose new values are in the image       STORED   values: all lanes, whose old ones are in the image

The head names the two versions, the layout and the XXH3-128 of everything from 4096 on, and carries its own BLAKE3: both are compared
before anything else is looked at, and sizes before anything is mapped into an array. Nothing in the file is code, or a path.
It is written beside and renamed, and only ever unlinked, so whoever maps it reads it whole.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from weightsync.errors import Corrupt
from weightsync.format import canonical
from weightsync.format.envelope import Envelope, seal
from weightsync.format.fields import Fields
from weightsync.format.layout import ALIGNMENT, Layout
from weightsync.format.refs import HEX_DIGEST, VersionRef
from weightsync.replica.directory import write_all

START_BYTES = 4096
MAX_FILE_BYTES = 1 << 46
_MAGIC = b"WSCHNG01"
_START = struct.Struct("<8sI")
_ROW = np.dtype([("tensor", "<u4"), ("kind", "<u4"), ("lanes", "<u8")])
_BLOCK = 1 << 22  # lanes looked at together
_ZEROS = bytes(ALIGNMENT)


class Kind(IntEnum):
    """What is kept of a tensor."""

    SPARSE = 0
    IMAGE = 1
    OLD = 2
    STORED = 3


class Part(NamedTuple):
    """A changed tensor as the file has it: what is None lies in the image, or nowhere."""

    tensor: int
    kind: Kind
    positions: NDArray[Any] | None = None
    values: NDArray[Any] | None = None
    old: NDArray[Any] | None = None


@dataclass(frozen=True)
class Head:
    """What a change file is about; `holds` is the version that the image must hold."""

    base: VersionRef | None
    version: VersionRef
    holds: VersionRef
    layout: str

    def to_body(self, tensors: int, nbytes: int, digest: str) -> dict[str, object]:
        """JSON form, with what the rest of the file amounts to."""
        base = self.base.to_body() if self.base else None
        ends = {"base": base, "version": self.version.to_body(), "holds": self.holds.to_body(), "layout": self.layout}
        return {"kind": "change", "format": 1, "tensors": tensors, "bytes": nbytes, "digest": digest, **ends}


class Parsed(NamedTuple):
    """A change file whose digests are right; `digest` identifies it."""

    head: Head
    digest: str
    layout: Layout
    parts: tuple[Part, ...]
    sums: NDArray[np.uint64]


def positions_dtype(lanes: int) -> np.dtype[Any]:
    """How positions of a tensor of so many lanes are kept."""
    return np.dtype("<u4" if lanes <= 1 << 32 else "<u8")


class Writer:
    """Writes one file to `fd`, which is empty: `add` part after part, then `finish`. Raises `OSError`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._hasher = xxhash.xxh3_128()
        self._nbytes = 0
        self._rows: list[tuple[int, int, int]] = []
        write_all(fd, bytes(START_BYTES))

    def add(self, part: Part, lanes: int) -> None:
        """The next tensor; `lanes` is how many are written."""
        for array in (part.positions, part.values, part.old):
            if array is not None:
                self._write(np.ascontiguousarray(array))
        self._rows.append((part.tensor, int(part.kind), lanes))

    def finish(self, head: Head, sums: NDArray[np.uint64], pwrite: Callable[[int, bytes, int], int]) -> str:
        """Ends it; gives its digest. `pwrite` is the system's."""
        self._write(np.array(self._rows, _ROW))
        self._write(sums.astype("<u8"))
        body = head.to_body(len(self._rows), self._nbytes, self._hasher.hexdigest())
        envelope = seal(canonical.to_bytes(body))
        pwrite(self._fd, _START.pack(_MAGIC, len(envelope.data)) + envelope.data, 0)
        return envelope.digest

    def _write(self, array: NDArray[Any]) -> None:
        data = array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")
        for piece in (data, _ZEROS[: -array.nbytes % ALIGNMENT]):
            write_all(self._fd, piece)
            self._hasher.update(piece)
            self._nbytes += len(piece)


def parse(data: memoryview, what: str, layout_of: Callable[[str], Layout], digest: str | None = None) -> Parsed:
    """Reads a mapped file; the arrays are views of it. `layout_of` finds the layout of a digest.

    `digest`: what it must be. Raises `Corrupt` naming `what`, `Unsupported` for what is newer, and what `layout_of` raises.
    """
    envelope = _envelope(data, what)
    if digest is not None and envelope.digest != digest:
        raise Corrupt(f"{what} is another one than was meant", remedy="stage the change again")
    fields = Fields(envelope.value(what), what)
    fields.constant("kind", "change")
    fields.constant("format", 1)
    rows, nbytes, found = fields.integer("tensors"), fields.integer("bytes"), fields.hex("digest", 32)
    base = fields.optional("base", lambda name: VersionRef.take(fields, name))
    head = Head(base, VersionRef.take(fields, "version"), VersionRef.take(fields, "holds"), fields.hex("layout", HEX_DIGEST))
    fields.done()
    body = data[START_BYTES:]
    if len(body) != nbytes or xxhash.xxh3_128_hexdigest(body) != found:
        raise Corrupt(f"{what} was cut, or its bytes changed", remedy="stage the change again")
    layout = layout_of(head.layout)
    try:
        parts, sums = _parts(body, layout, rows)
    except (ValueError, IndexError) as error:
        raise Corrupt(f"{what} contradicts itself: {error}") from None
    return Parsed(head, envelope.digest, layout, parts, sums)


def _envelope(data: memoryview, what: str) -> Envelope:
    if not START_BYTES <= len(data) <= MAX_FILE_BYTES:
        raise Corrupt(f"{what} has {len(data)} bytes")
    magic, size = _START.unpack(data[: _START.size])
    if magic != _MAGIC or size > START_BYTES - _START.size:
        raise Corrupt(f"{what} is no change file")
    if any(data[_START.size + size : START_BYTES]):
        raise Corrupt(f"{what} has bytes where none belong")
    return Envelope.parse(bytes(data[_START.size : _START.size + size]), what)


def _parts(body: memoryview, layout: Layout, count: int) -> tuple[tuple[Part, ...], NDArray[np.uint64]]:
    """Raises `ValueError` for what `Writer` did not write."""
    if count > len(layout.tensors):
        raise ValueError("more tensors than there are")
    sums_at = len(body) - _padded(8 * len(layout.tensors))
    index_at = sums_at - _padded(_ROW.itemsize * count)
    if index_at < 0:
        raise ValueError("too short for its index")
    index = np.frombuffer(body, _ROW, count, index_at) if count else np.empty(0, _ROW)
    if (np.diff(index["tensor"].astype(np.int64)) <= 0).any() or (count and index["tensor"][-1] >= len(layout.tensors)):
        raise ValueError("tensors do not ascend")
    cursor = _Cursor(body, index_at)
    parts = tuple(_read(cursor, layout, *(int(value) for value in row)) for row in index)
    if cursor.at != index_at:
        raise ValueError("bytes that no tensor has")
    sums = np.frombuffer(body, "<u8", len(layout.tensors), sums_at) if layout.tensors else np.empty(0, "<u8")
    return parts, sums


class _Cursor:
    def __init__(self, body: memoryview, end: int) -> None:
        self._body, self._end, self.at = body, end, 0

    def take(self, dtype: str | np.dtype[Any], lanes: int) -> NDArray[Any]:
        nbytes = np.dtype(dtype).itemsize * lanes
        if nbytes > self._end - self.at:
            raise ValueError("a list reaches beyond the end")
        found = np.frombuffer(self._body, dtype, lanes, self.at) if lanes else np.empty(0, dtype)
        self.at += _padded(nbytes)
        return found


def _read(cursor: _Cursor, layout: Layout, number: int, kind: int, lanes: int) -> Part:
    tensor, which = layout.tensors[number], Kind(kind)
    lane = f"<u{tensor.dtype.lane_bytes}"
    if which is not Kind.SPARSE and lanes != tensor.lanes:
        raise ValueError(f"{lanes} lanes of {tensor.name[:80]!r}, which has {tensor.lanes}")
    match which:
        case Kind.SPARSE:
            positions = cursor.take(positions_dtype(tensor.lanes), lanes)
            _check_positions(positions, tensor.lanes)
            return Part(number, which, positions, cursor.take(lane, lanes), cursor.take(lane, lanes))
        case Kind.OLD:
            return Part(number, which, old=cursor.take(lane, lanes))
        case Kind.STORED:
            return Part(number, which, values=cursor.take(lane, lanes))
        case Kind.IMAGE:
            return Part(number, which)


def _check_positions(positions: NDArray[Any], lanes: int) -> None:
    if len(positions) == 0 or int(positions[-1]) >= lanes:
        raise ValueError("no positions, or one beyond the tensor")
    for part in _overlapping(positions):
        if (part[1:] <= part[:-1]).any():
            raise ValueError("positions do not ascend")


def _overlapping(positions: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(positions), _BLOCK):
        yield positions[start : start + _BLOCK + 1]


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def write_parts(writer: Writer, layout: Layout, parts: Iterable[Part]) -> None:
    """Adds parts as they come."""
    for part in parts:
        positions = part.positions
        writer.add(part, len(positions) if positions is not None else layout.tensors[part.tensor].lanes)
