"""The leaves and sums of one version, as stored under `digests/`."""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightsync.errors import Corrupt
from weightsync.format.layout import LEAF_BYTES, Layout
from weightsync.format.root import root_digest

_MAGIC = b"WSDG"
_HEADER = struct.Struct("<4sBB2xII")  # magic, format, bytes per leaf, chunks, tensors


@dataclass(frozen=True)
class DigestTable:
    """`leaves`: the leaves of all chunks, concatenated. `sums`: uint64, one per tensor."""

    leaves: bytes
    sums: NDArray[np.uint64]

    def to_bytes(self, layout: Layout) -> bytes:
        """Header, leaves, sums (little-endian)."""
        header = _HEADER.pack(_MAGIC, 1, LEAF_BYTES[layout.leaf], layout.first_chunks[-1], len(layout.tensors))
        return b"".join((header, self.leaves, self.sums.astype("<u8").tobytes()))

    def leaf(self, layout: Layout, chunk: int) -> bytes:
        """The leaf of one chunk."""
        size = LEAF_BYTES[layout.leaf]
        return self.leaves[chunk * size : (chunk + 1) * size]

    @classmethod
    def parse(cls, layout: Layout, data: bytes, root: str) -> "DigestTable":
        """Reads stored bytes and checks that they make up `root`. Raises `Corrupt`."""
        size, chunks, tensors = LEAF_BYTES[layout.leaf], layout.first_chunks[-1], len(layout.tensors)
        if len(data) != _HEADER.size + chunks * size + tensors * 8 or data[: _HEADER.size] != _HEADER.pack(
            _MAGIC, 1, size, chunks, tensors
        ):
            raise Corrupt("the table of leaves does not fit the layout")
        end = _HEADER.size + chunks * size
        leaves = data[_HEADER.size : end]
        if root_digest(layout, leaves) != root:
            raise Corrupt("the leaves do not make up the root")
        return cls(leaves, np.frombuffer(data, "<u8", offset=end).astype(np.uint64))
