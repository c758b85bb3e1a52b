"""What belongs to a checkpoint directory: its safetensors files by index, its small files, and what is left out.

An index (`*.safetensors.index.json`), where there is one, decides which safetensors files count; without one all at the top do.
Small files (configuration, tokenizer, chat templates) come along, from subdirectories too. Left out with a note: hidden files,
subdirectories that hold weights of their own, weights in other formats, and anything larger than a small file may be.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weightsync.errors import Invalid, NotFound
from weightsync.format.limits import MAX_FILE_BYTES
from weightsync.format.names import check_file
from weightsync.format.safetensors import Header
from weightsync.publisher.inputs import InputFile, refuse

SAFETENSORS = ".safetensors"
INDEX = ".safetensors.index.json"
MAX_SMALL_FILES = 10_000
MAX_SMALL_BYTES = 512 << 20  # of all small files together: they are held in memory
# Weights and optimizer states in other formats; most of them are pickles, which must not travel.
_FOREIGN = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack", ".onnx", ".gguf", ".npz", ".npy", ".distcp", ".ot", ".tflite")
_REMEDY = "copy the missing files, or save the checkpoint again"


@dataclass(frozen=True)
class Listing:
    """Names relative to the directory. `weight_map` is the index's table of tensor name to file; None without an index."""

    tensors: tuple[str, ...]
    small: tuple[str, ...]
    weight_map: Mapping[str, str] | None
    index: str
    notes: tuple[str, ...]


def scan(directory: Path) -> Listing:
    """Looks at names and sizes only. Raises `Invalid` or `NotFound` naming the culprit."""
    sizes, notes = _walk(directory)
    at_top = sorted(name for name in sizes if name.endswith(SAFETENSORS))
    indexes = sorted(name for name in sizes if "/" not in name and name.endswith(INDEX))
    if len(indexes) > 1:
        raise Invalid(f"{str(directory)!r} has two indexes, {indexes[0]!r} and {indexes[1]!r}", remedy="keep one per directory")
    weight_map = _read_index(directory, indexes[0]) if indexes else None
    tensors = tuple(sorted(set(weight_map.values()))) if weight_map is not None else tuple(at_top)
    for missing in (name for name in tensors if name not in sizes):
        raise NotFound(f"{indexes[0]!r} in {str(directory)!r} names {missing!r}, which is not there", remedy=_REMEDY)
    if not tensors:
        raise Invalid(f"{str(directory)!r} holds no safetensors file", remedy="name a Hugging Face directory or a .safetensors file")
    notes += [f"{name} is not in {indexes[0]}: left out" for name in at_top if name not in tensors]
    small = []
    for name in sorted(sizes.keys() - set(at_top)):
        if name.endswith(_FOREIGN):
            notes.append(f"{name} holds data in another format: left out")
        elif sizes[name] > MAX_FILE_BYTES:
            notes.append(f"{name} has {sizes[name]} bytes, more than {MAX_FILE_BYTES}: left out")
        else:
            small.append(name)
    _check_small(directory, small, sum(sizes[name] for name in small))
    return Listing(tensors, tuple(small), weight_map, indexes[0] if indexes else "", tuple(notes))


def check_index(listing: Listing, headers: Mapping[str, Header]) -> None:
    """Compares an index with what the files hold, and refuses a tensor that stands in two files. Raises `Invalid`."""
    homes: dict[str, str] = {}
    for file, header in headers.items():
        for entry in header.entries:
            if entry.name in homes:
                raise Invalid(
                    f"tensor {entry.name!r} stands in {homes[entry.name]!r} and in {file!r}", remedy="remove the file that is left over"
                )
            homes[entry.name] = file
    if listing.weight_map is None:
        return
    for name, file in listing.weight_map.items():
        if homes.get(name) != file:
            where = f"it stands in {homes[name]!r}" if name in homes else "no file holds it"
            raise Invalid(f"{listing.index!r} says that tensor {name!r} is in {file!r}, but {where}", remedy=_REMEDY)
    for name, file in homes.items():
        if name not in listing.weight_map:
            raise Invalid(f"{file!r} holds tensor {name!r}, which {listing.index!r} does not name", remedy=_REMEDY)


def _walk(directory: Path) -> tuple[dict[str, int], list[str]]:
    """Sizes of all files that may count, by relative name, and what was left out."""
    sizes: dict[str, int] = {}
    notes: list[str] = []
    for name, entry in _entries(directory, ""):
        is_file = entry.is_file()
        if not is_file and name.endswith((SAFETENSORS, INDEX)):
            raise Invalid(f"{str(directory / name)!r} is no regular file, or a link to nothing", remedy=_REMEDY)
        if is_file:
            sizes[name] = entry.stat().st_size
        elif entry.is_dir():
            inner, holds_weights = _walk_below(Path(entry.path), name)
            if holds_weights:
                notes.append(f"{name}/ holds weights of its own: left out")
            else:
                sizes |= inner
        else:
            notes.append(f"{name} is no regular file, or a link to nothing: left out")
    return sizes, notes


def _walk_below(directory: Path, prefix: str, depth: int = 1) -> tuple[dict[str, int], bool]:
    sizes: dict[str, int] = {}
    if depth > 7:
        return sizes, False
    for name, entry in _entries(directory, prefix + "/"):
        if entry.is_file():
            if name.endswith((SAFETENSORS, *_FOREIGN)):
                return {}, True
            sizes[name] = entry.stat().st_size
        elif entry.is_dir(follow_symlinks=False):
            inner, holds_weights = _walk_below(Path(entry.path), name, depth + 1)
            if holds_weights:
                return {}, True
            sizes |= inner
    return sizes, False


def _entries(directory: Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Entries that are not hidden. Files of a Hugging Face cache are symbolic links, so links are followed."""
    try:
        with os.scandir(directory) as found:
            for entry in sorted(found, key=lambda entry: entry.name):
                if not entry.name.startswith("."):
                    yield prefix + entry.name, entry
    except OSError as error:
        refuse(directory, error)


def _check_small(directory: Path, names: list[str], nbytes: int) -> None:
    if len(names) > MAX_SMALL_FILES or nbytes > MAX_SMALL_BYTES:
        raise Invalid(
            f"{str(directory)!r} has {len(names)} small files of {nbytes} bytes beside its tensors, more than {MAX_SMALL_FILES} or "
            f"{MAX_SMALL_BYTES} bytes",
            remedy="move what is not part of the checkpoint elsewhere",
        )


def _read_index(directory: Path, name: str) -> dict[str, str]:
    file = InputFile(directory / name)
    try:
        if file.size_bytes > MAX_FILE_BYTES:
            raise Invalid(
                f"{name!r} has {file.size_bytes} bytes, more than {MAX_FILE_BYTES}", remedy="save without an index, or in fewer tensors"
            )
        value = json.loads(file.read(file.size_bytes).decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{str(directory / name)!r} is not a valid index: {error}", remedy=_REMEDY) from None
    finally:
        file.close()
    table = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(table, dict) or not table:
        raise Invalid(f"{str(directory / name)!r} has no weight_map", remedy=_REMEDY)
    for tensor, home in table.items():
        if not isinstance(home, str) or "/" in home or not home.endswith(SAFETENSORS):
            raise Invalid(f"{name!r} places tensor {tensor[:80]!r} in {str(home)[:80]!r}, which is no safetensors file beside it")
        check_file(home)
    return table


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"{name[:80]!r} stands twice")
            seen.add(name)
    return found
