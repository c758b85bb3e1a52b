"""The weights of one version in one file, mapped into memory.

All space is allocated before the file is mapped, so a full disk or shared memory is an error when the image is made and never a SIGBUS
later. Where the directory is on /dev/shm this is the host's one copy in memory; on a disk every update dirties nearly all pages, and the
kernel writes the whole model back. Nothing is synced: whether an image is whole after a power loss is found out by hashing it when it is
opened.
"""

import errno
import mmap
import os
from contextlib import suppress
from types import TracebackType
from typing import Self

from weightsync.clock import new_write_id
from weightsync.errors import Corrupt, Invalid, NoSpace
from weightsync.format.layout import Layout
from weightsync.format.root import leaf_digest
from weightsync.replica.directory import PrivateDirectory
from weightsync.replica.parallel import Workers, batches
from weightsync.replica.state import IMAGE_PREFIX
from weightsync.store.oserrors import named_errors


class Image:
    """Memory of `layout.image_bytes`. Not locked: see `Replica` and `readers`. Views go stale when the image is closed."""

    def __init__(self, layout: Layout, name: str, mapped: mmap.mmap | None, *, writable: bool) -> None:
        self.layout = layout
        self.name = name
        self._mapped = mapped
        self.data = memoryview(mapped if mapped is not None else b"")
        if not writable:
            self.data = self.data.toreadonly()

    @classmethod
    def create(cls, directory: PrivateDirectory, layout: Layout) -> Self:
        """A new image, all zero, under a name of its own. Raises `NoSpace` when the file system cannot hold all of it."""
        name = IMAGE_PREFIX + new_write_id()
        where = f"image of {layout.image_bytes} bytes in {str(directory.path)!r}"
        try:
            with named_errors(f"making the {where}"):
                fd = directory.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
                try:
                    _allocate(fd, layout.image_bytes)
                    return cls._map(fd, layout, name, writable=True)
                finally:
                    os.close(fd)
        except BaseException as error:
            directory.remove(name)
            if isinstance(error, NoSpace):
                raise NoSpace(
                    f"no room for the {where}", remedy="free space there (`df`), or give a directory on a larger file system"
                ) from error
            raise

    @classmethod
    def open(cls, directory: PrivateDirectory, name: str, layout: Layout, *, writable: bool) -> Self:
        """Maps an existing image. Raises `Corrupt` when it is missing or has another size; its content is not looked at."""
        with named_errors(f"image {str(directory.path / name)!r}"):
            try:
                fd = directory.open(name, os.O_RDWR if writable else os.O_RDONLY)
            except FileNotFoundError:
                raise Corrupt(f"image {name!r} is missing") from None
            try:
                size = os.fstat(fd).st_size
                if size != layout.image_bytes:
                    raise Corrupt(f"image {name!r} has {size} bytes instead of {layout.image_bytes}")
                return cls._map(fd, layout, name, writable=writable)
            finally:
                os.close(fd)

    @classmethod
    def _map(cls, fd: int, layout: Layout, name: str, *, writable: bool) -> Self:
        if layout.image_bytes == 0:
            return cls(layout, name, None, writable=writable)
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return cls(layout, name, mmap.mmap(fd, layout.image_bytes, mmap.MAP_SHARED, access), writable=writable)

    def chunk(self, number: int) -> memoryview:
        """The bytes of one chunk."""
        chunk = self.layout.chunks[number]
        return self.data[chunk.offset : chunk.offset + chunk.nbytes]

    def tensor(self, name: str) -> memoryview:
        """The bytes of one tensor, which may be called by an alias. Raises `Invalid`."""
        try:
            number = self.layout.index[name]
        except KeyError:
            raise Invalid(f"no tensor is called {name[:80]!r}") from None
        start = self.layout.offsets[number]
        return self.data[start : start + self.layout.tensors[number].nbytes]

    def leaf(self, number: int) -> bytes:
        """The digest of one chunk's present bytes."""
        return leaf_digest(self.layout.leaf, self.chunk(number))

    def verify(self, leaves: bytes, workers: Workers) -> list[int]:
        """Numbers of the chunks whose bytes are not what `leaves` (of all chunks, concatenated) say; all are hashed, at memory speed."""
        size = len(leaves) // max(1, len(self.layout.chunks))

        def check(numbers: range) -> list[int]:
            return [n for n in numbers if self.leaf(n) != leaves[n * size : (n + 1) * size]]

        return [bad for found in workers.map(check, batches(self.layout)) for bad in found]

    def describe(self, number: int) -> str:
        """A chunk in words."""
        return describe_chunk(self.layout, number)

    def close(self) -> None:
        """Unmaps the image, or leaves that to the last view that is still held outside."""
        self.data.release()
        if self._mapped is not None:
            with suppress(BufferError):
                self._mapped.close()
            self._mapped = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _allocate(fd: int, nbytes: int) -> None:
    # Looked at first: a tmpfs would hand out all memory that it has before it finds that there is too little.
    system = os.fstatvfs(fd)
    if system.f_bavail * system.f_frsize < nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if nbytes:
        os.posix_fallocate(fd, 0, nbytes)


def describe_chunk(layout: Layout, number: int) -> str:
    """A chunk in words, for errors."""
    chunk = layout.chunks[number]
    return f"chunk {number} (tensor {layout.tensors[chunk.tensor].name!r}, elements from lane {chunk.start_lane})"
