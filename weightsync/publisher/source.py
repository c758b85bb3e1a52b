"""Where a publisher's weights come from: a table of tensors, the small files beside them, and the bytes of any chunk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from weightsync.format.files import FileTable
from weightsync.format.layout import Chunk, Layout
from weightsync.format.limits import DEFAULT_CHUNK_LANES
from weightsync.format.refs import Ref


@dataclass(frozen=True)
class Chunking:
    """How a layout is cut and digested. A run keeps that of its first version: another one means a snapshot."""

    lanes: int = DEFAULT_CHUNK_LANES
    leaf: str = "xxh3-128"

    @classmethod
    def of(cls, layout: Layout) -> "Chunking":
        """That of a layout."""
        return cls(layout.chunk_lanes, layout.leaf)


class Source(Protocol):
    """One state of the weights. It is only ever read, from many threads at once."""

    @property
    def layout(self) -> Layout:
        """The tensors."""
        ...

    @property
    def files(self) -> FileTable:
        """What else belongs to the checkpoint."""
        ...

    @property
    def objects(self) -> Sequence[tuple[Ref, bytes]]:
        """Contents of the files and headers that `files` names, each once."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What was left out and why, for people."""
        ...

    def read(self, chunk: Chunk, into: memoryview) -> memoryview:
        """The `chunk.nbytes` bytes of a chunk: a view of `into` (at least as long) after filling it, or of memory that holds them anyway.

        Raises `Invalid` naming the file when it was cut or changed meanwhile.
        """
        ...

    def check_unchanged(self) -> None:
        """Raises `Invalid` if the input changed since it was opened: what was read may then mix two states."""
        ...

    def close(self) -> None:
        """Lets go of files and memory."""
        ...
