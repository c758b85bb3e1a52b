"""The two kinds of states that `diff` compares: a version of a store, and a checkpoint on disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weightsync.cli import look
from weightsync.cli.context import Context
from weightsync.cli.scratch import scratch_replica
from weightsync.format.layout import Chunk, Layout
from weightsync.publisher.checkpoint import open_checkpoint
from weightsync.publisher.source import Source
from weightsync.replica.fetch import ShardSource
from weightsync.replica.image import Image
from weightsync.replica.update import update


class ImageSide:
    """A rebuilt version."""

    def __init__(self, image: Image) -> None:
        self.layout: Layout = image.layout
        self._image = image

    def read(self, chunk: Chunk) -> memoryview:
        """The bytes of a chunk."""
        return self._image.chunk(chunk.number)


class SourceSide:
    """A checkpoint, read by position."""

    def __init__(self, source: Source) -> None:
        self.layout: Layout = source.layout
        self._source = source
        self._buffer = memoryview(bytearray(max((chunk.nbytes for chunk in source.layout.chunks), default=0)))

    def read(self, chunk: Chunk) -> memoryview:
        """The bytes of a chunk, valid until the next call."""
        return self._source.read(chunk, self._buffer)


@contextmanager
def checkpoint(path: Path) -> Iterator[SourceSide]:
    """A directory or a safetensors file."""
    source = open_checkpoint(path)
    try:
        yield SourceSide(source)
    finally:
        source.close()


@contextmanager
def version(context: Context, text: str) -> Iterator[ImageSide]:
    """A version, rebuilt and verified in scratch space."""
    catalog = context.catalog
    record = look.resolve(catalog, text)
    nbytes = catalog.layout(record.manifest.layout).image_bytes
    with scratch_replica(nbytes) as replica:
        with context.out.progress(f"version {record.ref.version}") as advance:
            update(replica, catalog, record, ShardSource(catalog), progress=advance)
        yield ImageSide(replica.image)
