"""An engine that is a directory: each version is written beside, proven from its files, and switched to by renaming a link.

    engine = DirectoryEngine(Path("weights"))        # whoever loads weights/current finds a whole version, always
    engine = DirectoryEngine(Path("weights"), write=...)    # with config, tokenizer and the files as they were published

It works with anything that loads a checkpoint, at the price of a copy on disk and of loading the whole model.
"""

import os
from collections.abc import Callable
from pathlib import Path

from weightsync.clock import SYSTEM, Clock
from weightsync.codec import chunk_sum
from weightsync.engine.api import Applied, Change, Mode
from weightsync.engine.change import tensor_bits
from weightsync.engine.directories import VersionDirectories
from weightsync.engine.proof import check_sums
from weightsync.errors import Conflict, Dirty, Invalid, Unsupported, WeightsyncError
from weightsync.format.refs import VersionRef
from weightsync.format.safetensors import PREFIX_BYTES, Entry, file_order, header_bytes, make_header, parse_header
from weightsync.replica.directory import read_exactly, write_all
from weightsync.replica.readers import open_image_readonly
from weightsync.store.oserrors import named_errors

Write = Callable[[Change, Path], object]  # makes the directory of a version; it does not exist before
_FILE = "model.safetensors"
_BLOCK_BYTES = 16 << 20  # a multiple of every lane


class DirectoryEngine:
    """Keeps the last `keep` versions in `directory`. For one thread, and one process: raises `Conflict` while another writes there."""

    def __init__(
        self, directory: Path, *, keep: int = 2, write: Write | None = None, look_only: bool = False, clock: Clock = SYSTEM
    ) -> None:
        """`write` None: one safetensors file, and nothing else. `look_only`: nothing will be changed, and others may write."""
        self._directories = VersionDirectories(directory, keep=keep, look_only=look_only)
        self._write, self._clock = write, clock
        self._hidden = self._dirty = False
        self._version = self._directories.version

    @property
    def version(self) -> VersionRef | None:
        """What `current` names; while withdrawn: what it will name again."""
        if self._dirty:
            return None
        return self._version if self._hidden else self._directories.version

    def stage(self, change: Change) -> "DirectoryStaged":
        """Writes the version beside what `current` names, and proves its files. Raises `Conflict`, `Corrupt`, `NoSpace`, `Unsupported`."""
        self.check_base(change)
        if not self._reusable(change):
            self._directories.write(change.version, lambda target: self._fill(change, target))
        try:
            self._prove(change)
        except WeightsyncError:
            self._directories.forget(change.version)
            raise
        return DirectoryStaged(self, change)

    def reload(self, change: Change, *, limit_s: float = 0.0) -> Applied:
        """Writes the version anew, even the one that `current` names: while it is written, `current` names nothing. No time limit."""
        del limit_s
        started = self._clock.monotonic_s()
        try:
            if change.base is not None:
                raise Invalid("only a whole change can be reloaded", remedy="make it without a base")
            self._directories.hide()
            self._directories.write(change.version, lambda target: self._fill(change, target))
            self._prove(change)
        except WeightsyncError as error:
            self._dirty = True
            raise Dirty(f"version {change.version.version} could not be written: {error.message}", remedy=error.remedy) from error
        self.switch(change.version)
        return Applied(change.version, change.lanes, change.lanes, self._clock.monotonic_s() - started)

    def sums(self) -> dict[str, int]:
        """Of the tensors in the files of the version served, read from the disk. Raises `Corrupt`."""
        version = self.version
        return {} if version is None else _sums(self._directories.at(version))

    def withdraw(self, reason: str) -> None:
        """Takes `current` away; `reason` is for engines that can tell it to somebody."""
        del reason
        self._version, self._hidden = self.version, True
        self._directories.hide()

    def admit(self) -> None:
        """Brings `current` back. Raises `Dirty`."""
        if self._dirty or self._version is None:
            raise Dirty(f"no version in {str(self._directories.path)!r} is certain", remedy="reload one")
        if self._hidden:
            self._hidden = False
            self._directories.switch(self._version)

    def close(self) -> None:
        """Lets other writers in."""
        self._directories.close()

    def check_base(self, change: Change) -> None:
        """Raises `Conflict` unless the change starts from what is served."""
        if change.base is not None and change.base != self.version:
            raise Conflict(f"the change starts from version {change.base.version}, which is not served", remedy="make it from what is")

    def switch(self, version: VersionRef) -> None:
        """Serves what was written; withdrawn, it will."""
        self._version, self._dirty = version, False
        if not self._hidden:
            self._directories.switch(version)

    def forget(self, version: VersionRef) -> None:
        """Removes what is not served."""
        self._directories.forget(version)

    def monotonic_s(self) -> float:
        """Its clock."""
        return self._clock.monotonic_s()

    def _reusable(self, change: Change) -> bool:
        """The version that is served, or one that is kept and to be gone back to, which is proven as any other."""
        return self._directories.kept(change.version) and (change.holds is not None or change.version == self.version)

    def _fill(self, change: Change, target: Path) -> None:
        if self._write is None:
            write_safetensors(change, target)
        elif change.holds is None:
            self._write(change, target)
        else:
            raise Unsupported(f"version {change.version.version} is not kept any more", remedy="keep more versions (--keep)")

    def _prove(self, change: Change) -> None:
        check_sums(change.layout, change.sums, _sums(self._directories.at(change.version)), change.version)


class DirectoryStaged:
    """A version that is written."""

    def __init__(self, engine: DirectoryEngine, change: Change) -> None:
        self._engine, self._change, self._used = engine, change, False

    def apply(self, mode: Mode = Mode.KEEP, *, limit_s: float = 30.0, prove: bool = False) -> Applied:
        """Switches to it. There is nothing to pause, and it is proven already."""
        del mode, limit_s, prove
        self._use()
        self._engine.check_base(self._change)
        started = self._engine.monotonic_s()
        self._engine.switch(self._change.version)
        lanes = self._change.lanes
        return Applied(self._change.version, lanes, lanes, self._engine.monotonic_s() - started)

    def discard(self) -> None:
        """Removes it again."""
        self._use()
        self._engine.forget(self._change.version)

    def _use(self) -> None:
        if self._used:
            raise Invalid("this change was applied or discarded already", remedy="stage it again")
        self._used = True


def write_safetensors(change: Change, target: Path) -> None:
    """Makes `target` a directory with one safetensors file of the version; gets its name when it is whole and on the disk."""
    header = make_header(file_order(change.layout.tensors), {"format": "pt"})
    work = target.with_name(f".{target.name}.restoring-{change.version.manifest[:16]}")
    work.mkdir()
    with open_image_readonly(change.image) as reader, (work / _FILE).open("wb", buffering=0) as file:
        write_all(file.fileno(), header.raw)
        for entry in header.entries:
            write_all(file.fileno(), tensor_bits(change, reader.image, change.layout.index[entry.name]).tobytes())
        os.fsync(file.fileno())
    work.rename(target)


def _sums(directory: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for path in sorted(directory.rglob("*.safetensors")):
        with named_errors(f"reading {str(path)!r}"):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                size = os.fstat(fd).st_size
                header = parse_header(read_exactly(fd, header_bytes(read_exactly(fd, PREFIX_BYTES), size, path.name)), size, path.name)
                found |= {entry.name: _sum(fd, header.data_start, entry) for entry in header.entries}
            finally:
                os.close(fd)
    return found


def _sum(fd: int, start: int, entry: Entry) -> int:
    total, size = 0, entry.dtype.lane_bytes
    for at in range(entry.begin, entry.end, _BLOCK_BYTES):
        part = read_exactly(fd, min(_BLOCK_BYTES, entry.end - at), start + at)
        total += chunk_sum(entry.dtype, part, (at - entry.begin) // size)
    return total % (1 << 64)
