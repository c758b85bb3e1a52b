"""From an image back to a checkpoint directory whose files are byte for byte the published ones.

Everything goes into a hidden directory beside the output, is synced, and gets its name by one rename: there is a whole checkpoint or none.
Chunks are hashed again as they are written. Memory does not grow with the model: it is written from the mapped image.

`restore` takes a replica that holds the version. `restore_version` needs nothing but the store: it rebuilds the version in a replica of
its own first, by default on the output's disk (space for the model twice while it runs); `workdir` on /dev/shm takes memory instead.

An output whose name ends with `.safetensors` becomes one file with all tensors, without configuration and tokenizer.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from weightsync.catalog import Catalog, VersionRecord
from weightsync.clock import new_write_id
from weightsync.errors import Conflict, Corrupt, Invalid, NoSpace
from weightsync.format.digests import DigestTable
from weightsync.replica.directory import WRITE_BYTES, write_all
from weightsync.replica.fetch import ShardSource
from weightsync.replica.files import Files, TensorFile, files_of, one_file, small_file
from weightsync.replica.replica import Replica
from weightsync.replica.update import Progress, update
from weightsync.store.oserrors import named_errors

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}  # file systems without hard links
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
SINGLE_FILE = ".safetensors"
_MAX_PARTS = 512  # of one writev; the system allows 1,024


@dataclass(frozen=True)
class Restored:
    """What was written."""

    path: Path
    files: int
    nbytes: int


def restore(catalog: Catalog, record: VersionRecord, replica: Replica, out: Path, *, progress: Progress | None = None) -> Restored:
    """Writes the version that `replica` holds to `out`, which must not exist or be an empty directory; to one file as its name says.

    `progress` gets bytes written and bytes in all. Raises `Invalid` (out is taken; the replica holds something else), `NoSpace` (seen
    before anything is written, as far as it can be), `Denied`, `Corrupt`; nothing is left at `out` then.
    """
    check_free(out)
    with _workplace(out) as work:
        return _restore(catalog, record, replica, out, work=work, progress=progress)


def restore_version(
    catalog: Catalog,
    record: VersionRecord,
    out: Path,
    source: ShardSource,
    *,
    workdir: Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Restored:
    """As `restore`, from the store alone. `workdir` is where the version is rebuilt meanwhile (a directory is made in it and removed).

    `progress` counts the download as well as the writing. Raises `Compacted` for a version that is collected, or about to be.
    """
    check_free(out)
    catalog.check_kept(record.ref.version)
    counted = _Counted(progress)
    with _workplace(out) as work, _image_place(workdir, out.name, work) as place:
        layout = catalog.layout(record.manifest.layout)
        _check_space(place, layout.image_bytes + (layout.nbytes if workdir is None else 0))
        with Replica(place, threads=threads) as replica:
            update(replica, catalog, record, source, progress=counted.first(layout.nbytes))
            return _restore(catalog, record, replica, out, work=work, progress=counted.second)


def check_free(out: Path) -> None:
    """Raises `Invalid` unless `out` can become a new directory, or a new file."""
    if out.suffix == SINGLE_FILE and (out.is_symlink() or out.exists()):
        raise Invalid(f"{str(out)!r} exists", remedy="name a new file; nothing is ever overwritten")
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise Invalid(f"{str(out)!r} exists and is not an empty directory", remedy="name a new directory; nothing is ever overwritten")


def _restore(catalog: Catalog, record: VersionRecord, replica: Replica, out: Path, *, work: Path, progress: Progress | None) -> Restored:
    table = replica.table
    if replica.version != record.ref or table is None:
        raise Invalid(f"the replica does not hold version {record.ref.version}")
    image = replica.image
    files = files_of(catalog, record, image.layout)
    single = one_file(files, image.layout) if out.suffix == SINGLE_FILE else None
    nbytes = single.header.file_bytes if single else files.nbytes
    _check_space(work, nbytes)
    target = work / "files"
    with named_errors(f"restoring to {str(out)!r}"):
        writer = _Writer(replica, table, nbytes, progress)
        if single:
            writer.tensors(target, single)
        else:
            _write_all(catalog, files, target, writer)
        check_free(out)
        if single:
            _put(target, out)
        else:
            target.rename(out)
        _sync(out.parent)
    return Restored(out, 1 if single else len(files.small) + len(files.tensors), nbytes)


def _write_all(catalog: Catalog, files: Files, target: Path, writer: "_Writer") -> None:
    target.mkdir()
    for name, data in ((entry.name, small_file(catalog, entry)) for entry in files.small):
        writer.small(_under(target, name), data)
    for file in files.tensors:
        writer.tensors(_under(target, file.name), file)
    _sync_tree(target)


class _Writer:
    def __init__(self, replica: Replica, table: DigestTable, total: int, progress: Progress | None) -> None:
        self._image, self._workers, self._table = replica.image, replica.workers, table
        self._total, self._done, self._progress = total, 0, progress

    def small(self, path: Path, data: bytes) -> None:
        with _created(path) as fd:
            write_all(fd, data)
            self._count(len(data))

    def tensors(self, path: Path, file: TensorFile) -> None:
        with _created(path) as fd:
            os.ftruncate(fd, file.header.file_bytes)
            _write_at(fd, [memoryview(file.header.raw)], 0)
            self._count(file.header.data_start)
            for nbytes in self._workers.map(lambda part: self._part(fd, *part), self._parts(file)):
                self._count(nbytes)

    def _parts(self, file: TensorFile) -> Iterator[tuple[int, list[int]]]:
        """Where in the file a run of chunks begins, and the chunks."""
        layout, start = self._image.layout, file.header.data_start
        end, chunks = start, list[int]()
        for number in file.numbers:
            for chunk in range(layout.first_chunks[number], layout.first_chunks[number + 1]):
                chunks.append(chunk)
                end += layout.chunks[chunk].nbytes
                if end - start >= WRITE_BYTES or len(chunks) >= _MAX_PARTS:
                    yield start, chunks
                    start, chunks = end, []
        yield start, chunks

    def _part(self, fd: int, start: int, chunks: list[int]) -> int:
        image, layout = self._image, self._image.layout
        for chunk in chunks:
            if image.leaf(chunk) != self._table.leaf(layout, chunk):
                raise Corrupt(
                    f"{image.describe(chunk)} changed in memory since it was verified",
                    remedy="run the command again; if it comes back, suspect the machine's memory",
                )
        return _write_at(fd, [image.chunk(chunk) for chunk in chunks], start)

    def _count(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)


class _Counted:
    """Two phases, one count: the download counts as much as the writing."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._first = 0

    def first(self, weight: int) -> Progress | None:
        if self._progress is None:
            return None
        show = self._progress
        self._first = weight
        return lambda done, total: show(weight * done // max(1, total), 2 * weight)

    def second(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(self._first + self._first * done // max(1, total), 2 * self._first)


def _put(file: Path, out: Path) -> None:
    """Gives `file` the name `out`, which nobody may have taken meanwhile: unlike a rename, neither way takes another's place."""
    try:
        os.link(file, out)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.close(os.open(out, _CREATE))  # ours now
        file.replace(out)


@contextmanager
def _created(path: Path) -> Iterator[int]:
    fd = os.open(path, _CREATE, 0o666)
    try:
        yield fd
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_at(fd: int, parts: list[memoryview], start: int) -> int:
    """Writes all of `parts` from offset `start` on, and says how many bytes they are."""
    total = sum(map(len, parts))
    done = os.pwritev(fd, parts, start) if total else 0
    while done < total:
        left = done
        rest = []
        for part in parts:
            rest.append(part[min(left, len(part)) :])
            left -= min(left, len(part))
        done += os.pwritev(fd, [part for part in rest if part], start + done)
    return total


def _under(root: Path, name: str) -> Path:
    # Names were checked when the table of files was read: relative, no "..", no odd characters.
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def _workplace(out: Path) -> Iterator[Path]:
    """A hidden directory beside `out`, locked while in use, removed at the end; those of killed processes go too."""
    with named_errors(f"making {str(out)!r}"):
        out.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{out.name}.restoring-"
        for left in out.parent.glob(f"{_escaped(prefix)}*"):
            _remove_left(left)
        work = out.parent / f"{prefix}{new_write_id()}"
        work.mkdir(mode=0o777)
        fd = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # taken for a left-over in the moment before it was locked
            raise Conflict(f"another process is making {str(out)!r}", remedy="let it finish, or name another directory") from None
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(fd)


def _escaped(text: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)


def _remove_left(left: Path) -> None:
    with suppress(OSError):
        fd = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        finally:
            os.close(fd)


@contextmanager
def _image_place(workdir: Path | None, name: str, work: Path) -> Iterator[Path]:
    if workdir is None:
        yield work / "replica"
        return
    with _workplace(workdir / name) as place:
        yield place / "replica"


def _check_space(near: Path, nbytes: int) -> None:
    while not near.exists():
        near = near.parent
    free = shutil.disk_usage(near).free
    if free < nbytes:
        raise NoSpace(f"{nbytes:,} bytes are needed in {str(near)!r}, {free:,} are free", remedy="free some space, or name another place")


def _sync_tree(root: Path) -> None:
    for directory, _, _ in os.walk(root):
        _sync(Path(directory))


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
