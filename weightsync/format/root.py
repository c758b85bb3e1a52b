"""Leaves and roots: what a chunk's bytes are, and what a whole state is."""

import struct

import xxhash
from blake3 import blake3

from weightsync.errors import Invalid
from weightsync.format.layout import LEAF_BYTES, Layout

_DOMAIN = b"weightsync root 1\0"


def leaf_digest(kind: str, data: bytes | memoryview) -> bytes:
    """Digest of a chunk's raw bytes: 16 bytes of XXH3-128 (canonical, big-endian) or 32 of BLAKE3."""
    if kind == "xxh3-128":
        return xxhash.xxh3_128_digest(data)
    return blake3(data).digest()


def root_digest(layout: Layout, leaves: bytes | memoryview) -> str:
    """BLAKE3, hexadecimal, over every tensor's name, type, shape and leaves, each prefixed by its length.

    `leaves` holds the leaves of all chunks in order. Every tensor counts, changed or not.
    """
    size = LEAF_BYTES[layout.leaf]
    firsts = layout.first_chunks
    if len(leaves) != firsts[-1] * size:
        raise Invalid(f"{len(leaves)} bytes of leaves for {firsts[-1]} chunks of {size}")
    hasher = blake3(
        _DOMAIN + _prefixed(layout.leaf.encode()) + struct.pack("<QQQ", layout.chunk_lanes, len(layout.tensors), len(layout.aliases))
    )
    view = memoryview(leaves)
    for number, tensor in enumerate(layout.tensors):
        shape = struct.pack(f"<{len(tensor.shape) + 1}Q", len(tensor.shape), *tensor.shape)
        own = view[firsts[number] * size : firsts[number + 1] * size]
        hasher.update(b"".join((_prefixed(tensor.name.encode()), _prefixed(tensor.dtype.name.encode()), shape, _prefixed(own))))
    for name, target in layout.aliases:
        hasher.update(_prefixed(name.encode()) + _prefixed(target.encode()))
    return hasher.hexdigest()


def _prefixed(data: bytes | memoryview) -> bytes:
    return struct.pack("<Q", len(data)) + data
