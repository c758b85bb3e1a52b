"""From the versions that a replica keeps to the change that leads an engine from one to another, and the file that shares it.

    change = make_change(replica, base)            # replica holds the new version; base: what the engine serves, None: unknown
    with open_change(change.file, change.digest) as change: ...        # in a worker process of this host
    back = inverse(change)                         # while the image still holds the new version
    discard_change(change)

Where the replica's past leads from `base` to the version it holds, a change is the lanes that differ; else it is whole, straight from the
image. The lists are decoded once and lie in a file beside the image, in shared memory where that is; everyone maps the same pages.
"""

import logging
import mmap
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from weightsync.clock import new_write_id
from weightsync.engine.api import Change, TensorChange
from weightsync.engine.change_file import Head, Kind, Parsed, Part, Writer, parse, write_parts
from weightsync.engine.changed_lanes import gain, image_bits, parts_between, way_to
from weightsync.errors import Conflict, Corrupt, Invalid, NotFound
from weightsync.format.layout import Layout
from weightsync.format.limits import MAX_LAYOUT_BYTES
from weightsync.format.refs import VersionRef
from weightsync.replica.directory import PrivateDirectory
from weightsync.replica.image import Image
from weightsync.replica.readers import ImageReader, open_image_readonly
from weightsync.replica.replica import Replica
from weightsync.replica.state import CHANGE_PREFIX, LAYOUT_PREFIX

_log = logging.getLogger(__name__)
_NAME = re.compile(CHANGE_PREFIX + r"[0-9a-f]{16}")

Bits = Callable[[int], NDArray[Any]]  # all lanes of a tensor in the image, by number


def make_change(replica: Replica, base: VersionRef | None, version: VersionRef | None = None) -> Change:
    """What leads from `base` to the version that `replica` holds; `base` None or out of reach: all of it. To be discarded.

    `version`: what the replica must hold. The change is good until the replica begins another transition. Raises `Invalid`, `NoSpace`.
    """
    held, layout, table = replica.version, replica.layout, replica.table
    if held is None or layout is None or table is None or version not in (None, held):
        raise Invalid(f"the replica does not hold {f'version {version.version}' if version else 'a version'}", remedy="update it first")
    replica.remember()
    image, pairs = replica.image, way_to(replica, base)

    def written(base: VersionRef | None, parts: Iterable[Part]) -> Change:
        head = Head(base, held, held, layout.digest)
        return _write(replica.path, layout, head, parts, sums=table.sums, bits=lambda number: image_bits(layout, image, number))

    if pairs is not None:
        try:
            return written(base, parts_between(replica, layout, pairs))
        except Corrupt as error:
            _log.warning("the way from version %d is damaged, so all is handed over: %s", base.version if base else 0, error)
    return written(None, [Part(number, Kind.IMAGE) for number in range(len(layout.tensors))])


def inverse(change: Change) -> Change:
    """What leads back from `change.version` to `change.base`, while the image stays what it is. Raises `Invalid` where no base is known."""
    if change.base is None or change.holds is not None:
        raise Invalid(f"there is no way back from version {change.version.version} without its base", remedy="reload instead")
    sums = change.sums.copy()
    parts = []
    for one in change.tensors:
        if one.old is None:
            raise Invalid("a change of a known base lacks old values", remedy="reload instead")
        sums[one.tensor] = (int(sums[one.tensor]) - gain(one)) % (1 << 64)
        kind = Kind.STORED if one.positions is None else Kind.SPARSE
        parts.append(Part(one.tensor, kind, one.positions, one.old, one.values if one.positions is not None else None))
    whole = {one.tensor: one.values for one in change.tensors if one.positions is None}
    head = Head(change.version, change.base, change.version, change.layout.digest)
    return _write(change.image, change.layout, head, parts, sums=sums, bits=lambda number: whole[number])


def tensor_bits(change: Change, image: Image, number: int) -> NDArray[Any]:
    """All lanes of a tensor in `change.version`, from the image open for reading: a view, or a copy where the change goes back."""
    lanes = image_bits(change.layout, image, number)
    one = next((one for one in change.tensors if one.tensor == number), None) if change.holds is not None else None
    if one is None:
        return lanes
    if one.positions is None:
        return one.values
    lanes = lanes.copy()
    lanes[one.positions] = one.values
    return lanes


def discard_change(change: Change) -> None:
    """Removes the file. Who has it mapped reads on; a missing one is fine."""
    if change.file is not None:
        change.file.unlink(missing_ok=True)


class OpenChange:
    """A change opened from its file, and where it needs the image, a shared lock on that; made by `open_change`. Close it soon."""

    def __init__(self, change: Change, image: ImageReader | None) -> None:
        self.change = change
        self._image = image

    def close(self) -> None:
        """Lets the writer of the image go on; views of the image end."""
        if self._image is not None:
            self._image.close()
            self._image = None

    def __enter__(self) -> Change:
        return self.change

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_change(path: Path, digest: str | None = None, *, wait_s: float = 0.0) -> OpenChange:
    """Opens the change file `path`, which lies beside the image of a replica of this user. `digest`: which one it must be.

    Everything is checked before it is believed. Raises `Corrupt`, `Denied` (somebody else could have written it), `NotFound`, `Conflict`
    (the image holds another version by now, or is being changed for longer than `wait_s`).
    """
    if not _NAME.fullmatch(path.name) or not path.parent.is_dir():
        raise NotFound(f"{str(path)!r} is no change file")
    parsed = _parse(path, digest)
    if all(part.kind is Kind.SPARSE for part in parsed.parts):
        return OpenChange(_change(parsed, path, _no_bits), None)
    reader = open_image_readonly(path.parent, wait_s=wait_s)
    try:
        _check_held(reader, parsed.head)
        return OpenChange(_change(parsed, path, lambda number: image_bits(parsed.layout, reader.image, number)), reader)
    except BaseException:
        reader.close()
        raise


def _check_held(reader: ImageReader, head: Head) -> None:
    if reader.version != head.holds or reader.layout.digest != head.layout:
        raise Conflict(f"the image holds version {reader.version.version}, the change needs {head.holds.version}", remedy="stage again")


def _parse(path: Path, digest: str | None) -> Parsed:
    what = f"change file {path.name!r}"
    directory = PrivateDirectory(path.parent)
    try:
        try:
            fd = directory.open(path.name, os.O_RDONLY)
        except FileNotFoundError:
            raise NotFound(f"{what} is gone", remedy="stage the change again") from None
        try:
            size = os.fstat(fd).st_size
            data = memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ) if size else b"")
        finally:
            os.close(fd)
        return parse(data, what, lambda layout: _layout(directory, layout), digest)
    finally:
        directory.close()


def _layout(directory: PrivateDirectory, digest: str) -> Layout:
    data = directory.read(LAYOUT_PREFIX + digest, MAX_LAYOUT_BYTES)
    if data is None or blake3(data).hexdigest() != digest:
        raise Corrupt(f"the layout {digest[:12]} of a change is missing or damaged")
    return Layout.parse(data)


def _write(directory: Path, layout: Layout, head: Head, parts: Iterable[Part], *, sums: NDArray[np.uint64], bits: Bits) -> Change:
    name = CHANGE_PREFIX + new_write_id()
    private = PrivateDirectory(directory)
    try:
        with private.fresh(name) as fd:
            writer = Writer(fd)
            write_parts(writer, layout, parts)
            digest = writer.finish(head, sums, os.pwrite)
    finally:
        private.close()
    path = directory / name
    try:
        return _change(_parse(path, digest), path, bits)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _change(parsed: Parsed, path: Path, bits: Bits) -> Change:
    head = parsed.head
    return Change(
        base=head.base,
        version=head.version,
        layout=parsed.layout,
        sums=parsed.sums,
        tensors=tuple(_tensor(part, bits) for part in parsed.parts),
        image=path.parent,
        file=path,
        digest=parsed.digest,
        holds=None if head.holds == head.version else head.holds,
    )


def _tensor(part: Part, bits: Bits) -> TensorChange:
    values, old = part.values, part.old
    if values is None:
        values = bits(part.tensor)
    if part.kind is Kind.STORED:
        old = bits(part.tensor)
    return TensorChange(part.tensor, part.positions, values, old)


def _no_bits(number: int) -> NDArray[Any]:
    raise Invalid(f"tensor {number} of a sparse change was asked for whole")
