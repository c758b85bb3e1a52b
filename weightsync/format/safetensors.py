"""The header of a safetensors file: read strictly, made canonically. Pure: bytes in, checked values out.

    8 bytes   length N of the JSON, little-endian
    N bytes   {"__metadata__": {str: str}, name: {"dtype", "shape", "data_offsets": [begin, end]}, ...}, padded with spaces
    the rest  data; offsets count from here

Stricter than the usual loader: a name that stands twice, a name that check_tensor refuses, a hole or an overlap between tensors, bytes
after the last one, and a size that contradicts type and shape are all refused before any data are read.

    size = header_bytes(prefix, file_bytes, what)      # prefix: the first PREFIX_BYTES of the file
    header = parse_header(file[:size], file_bytes, what)
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from weightsync.errors import Corrupt, Invalid, Unsupported
from weightsync.format.dtypes import DTYPES, DType
from weightsync.format.layout import Tensor
from weightsync.format.limits import MAX_DIMENSIONS, MAX_HEADER_BYTES, MAX_INTEGER, MAX_TENSORS
from weightsync.format.names import check_tensor

PREFIX_BYTES = 8
_METADATA = "__metadata__"
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}
_REMEDY = "the file is damaged or was not written by safetensors: copy it again"


class Entry(NamedTuple):
    """One tensor of a file: its bytes are data[begin:end]."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def tensor(self) -> Tensor:
        """The same without its place."""
        return Tensor(self.name, self.dtype, self.shape)


@dataclass(frozen=True)
class Header:
    """`raw`: the first bytes of the file exactly as they are, length included: a file is `raw` and then its data.

    `entries` are in the order of the data. `metadata` is None where the file has none.
    """

    raw: bytes
    metadata: dict[str, str] | None
    entries: tuple[Entry, ...]

    @property
    def data_start(self) -> int:
        """Offset of the data in the file."""
        return len(self.raw)

    @property
    def data_bytes(self) -> int:
        """Size of the data."""
        return self.entries[-1].end if self.entries else 0

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self.data_start + self.data_bytes

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(entry.name for entry in self.entries)


def header_bytes(prefix: bytes, file_bytes: int, what: str) -> int:
    """Bytes of the header including its length, from a file's first eight bytes. Raises `Corrupt`, `Invalid`; `what` names the file."""
    if len(prefix) < PREFIX_BYTES or file_bytes < PREFIX_BYTES:
        raise Corrupt(f"{what} is too short to be a safetensors file ({file_bytes} bytes)", remedy=_REMEDY)
    (length,) = struct.unpack_from("<Q", prefix)
    if length + PREFIX_BYTES > file_bytes:
        raise Corrupt(f"{what} claims a header of {length} bytes but has only {file_bytes}: it is cut, or no safetensors", remedy=_REMEDY)
    if length + PREFIX_BYTES > MAX_HEADER_BYTES:
        raise Invalid(f"{what} has a header of {length} bytes, more than {MAX_HEADER_BYTES}", remedy="split the checkpoint into more files")
    return int(length) + PREFIX_BYTES


def parse_header(raw: bytes, file_bytes: int | None, what: str) -> Header:
    """Reads a header of which `raw` is all, in a file of `file_bytes`; `what` names the file in errors.

    None: the file is not there, only its header; it then has the size that its tensors take. Raises `Corrupt` for a malformed or lying
    header, `Invalid` for names that are not allowed, `Unsupported` for unknown types.
    """
    if header_bytes(raw[:PREFIX_BYTES], len(raw) if file_bytes is None else file_bytes, what) != len(raw):
        raise Corrupt(f"the header of {what} is not as long as it says", remedy=_REMEDY)
    table = _parse_json(raw[PREFIX_BYTES:], what)
    metadata = _metadata(table.pop(_METADATA, None), what) if _METADATA in table else None
    if len(table) > MAX_TENSORS:
        raise Invalid(f"{what} has {len(table)} tensors, more than {MAX_TENSORS}")
    entries = sorted((_entry(name, value, what) for name, value in table.items()), key=lambda entry: (entry.begin, entry.end))
    header = Header(raw, metadata, tuple(entries))
    _check_places(entries, header.data_bytes if file_bytes is None else file_bytes - len(raw), what)
    return header


def make_header(tensors: Sequence[Tensor], metadata: Mapping[str, str] | None = None) -> Header:
    """The header of a file that holds `tensors` one after another in the given order; the data start at a multiple of 8.

    The usual loader wants wider types first (see `file_order`). Raises `Invalid` for names that are not allowed or stand twice.
    """
    table: dict[str, Any] = {} if metadata is None else {_METADATA: dict(sorted(metadata.items()))}
    entries, end = [], 0
    for tensor in tensors:
        entry = Entry(check_tensor(tensor.name), tensor.dtype, tensor.shape, end, end + tensor.nbytes)
        if tensor.name in table or tensor.name == _METADATA:
            raise Invalid(f"tensor {tensor.name!r} stands twice, or has a reserved name")
        table[tensor.name] = {"dtype": tensor.dtype.name, "shape": list(tensor.shape), "data_offsets": [entry.begin, entry.end]}
        entries.append(entry)
        end = entry.end
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % PREFIX_BYTES)
    if len(text) + PREFIX_BYTES > MAX_HEADER_BYTES:
        raise Invalid(f"a header of {len(text)} bytes, more than {MAX_HEADER_BYTES}", remedy="split the checkpoint into more files")
    return Header(struct.pack("<Q", len(text)) + text, None if metadata is None else dict(metadata), tuple(entries))


def file_order(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Wider types first, then by name: every tensor is aligned to its lanes, as the usual writer does it."""
    return sorted(tensors, key=lambda tensor: (-tensor.dtype.lane_bytes, tensor.name))


def _parse_json(text: bytes, what: str) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise Corrupt(f"the header of {what} does not begin with '{{'", remedy=_REMEDY)
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_float=_refuse, parse_constant=_refuse, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"the header of {what} cannot be read: {error}", remedy=_REMEDY) from None
    return dict(value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{twice[:80]!r} stands twice")
    return found


def _refuse(text: str) -> Any:
    raise ValueError(f"{text[:40]} is not an integer")


def _integer(text: str) -> int:
    if len(text) > len(str(MAX_INTEGER)) or abs(int(text)) > MAX_INTEGER:
        raise ValueError(f"{text[:40]} is beyond 2^53")
    return int(text)


def _metadata(value: Any, what: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise Corrupt(f"the metadata of {what} are not strings", remedy="write them with safetensors, which takes strings only")
    return value


def _entry(name: str, value: Any, what: str) -> Entry:
    try:
        check_tensor(name)
    except Invalid as error:
        raise Invalid(f"{what}: {error.message}", remedy="rename the tensor") from None
    if not isinstance(value, dict) or value.keys() != _ENTRY_KEYS:
        raise Corrupt(f"{what}: tensor {name!r} has other fields than dtype, shape and data_offsets", remedy=_REMEDY)
    match value:
        case {"dtype": str(kind), "shape": list(sizes), "data_offsets": [int(begin), int(end)]}:
            pass
        case _:
            raise Corrupt(f"{what}: the fields of tensor {name!r} have other types than they should", remedy=_REMEDY)
    if any(type(number) is not int or number < 0 for number in (*sizes, begin, end)):
        raise Corrupt(f"{what}: tensor {name!r} has a size or an offset that is no count", remedy=_REMEDY)
    if len(sizes) > MAX_DIMENSIONS or prod(sizes) > MAX_INTEGER:
        raise Invalid(f"{what}: tensor {name!r} has an impossible shape {str(sizes)[:80]}")
    return _checked(Entry(name, _dtype(kind, name, what), tuple(sizes), begin, end), what)


def _dtype(kind: str, name: str, what: str) -> DType:
    try:
        return DTYPES[kind]
    except KeyError:
        raise Unsupported(f"{what}: tensor {name!r} has the unknown dtype {kind[:40]!r}", remedy=f"known: {', '.join(DTYPES)}") from None


def _checked(entry: Entry, what: str) -> Entry:
    try:
        expected = entry.dtype.lanes(entry.shape) * entry.dtype.lane_bytes
    except Invalid as error:
        raise Invalid(f"{what}: tensor {entry.name!r}: {error.message}") from None
    if entry.end - entry.begin != expected:
        raise Corrupt(
            f"{what}: tensor {entry.name!r} has {entry.end - entry.begin} bytes, but {entry.dtype.name} of shape "
            f"{list(entry.shape)} takes {expected}",
            remedy=_REMEDY,
        )
    return entry


def _check_places(entries: list[Entry], data_bytes: int, what: str) -> None:
    end = 0
    for entry in entries:
        if entry.begin != end:
            fault = "overlaps the one before it" if entry.begin < end else f"leaves a hole of {entry.begin - end} bytes before it"
            raise Corrupt(f"{what}: tensor {entry.name!r} {fault}", remedy=_REMEDY)
        end = entry.end
    if end != data_bytes:
        fault = f"is cut: {end - data_bytes} bytes are missing" if end > data_bytes else f"has {data_bytes - end} bytes too many"
        raise Corrupt(f"{what} {fault} at its end", remedy=_REMEDY)
