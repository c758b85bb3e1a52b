"""What tells two states of a chunk apart: the bits that differ. The same flip leads from either to the other.

    packed  positions as gaps (u32), then the bits there, each as a snapshot frame of the codec (byte planes + zstd)
    whole   the bits of all lanes, where a list of positions would be larger

At one percent changed this is as small as a blind class-gap frame, and costs time by the changed lane instead of by the lane.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weightsync.codec import decode, encode_snapshot
from weightsync.errors import Corrupt
from weightsync.format.dtypes import DTYPES, DType
from weightsync.store.api import Buffer

_GAPS = DTYPES["U32"]


class Flip(NamedTuple):
    """`bits` to exclusive-or into the lanes at `positions` (ascending); None: into all lanes."""

    positions: NDArray[np.uint32] | None
    bits: NDArray[Any]

    @property
    def lanes(self) -> int:
        """How many lanes are touched."""
        return len(self.bits)


class Packed(NamedTuple):
    """A flip on its way to a file; `positions` is empty for a whole one."""

    lanes: int
    positions: bytes
    bits: bytes


def lanes_of(data: Buffer, lane_bytes: int) -> NDArray[Any]:
    """A chunk's lanes as unsigned integers; writable if `data` is."""
    return np.frombuffer(data, f"<u{lane_bytes}")


def difference(dtype: DType, one: Buffer, other: Buffer) -> Flip | None:
    """What leads from one state of a chunk to another; None where they are equal."""
    bits = lanes_of(one, dtype.lane_bytes) ^ lanes_of(other, dtype.lane_bytes)
    positions = np.flatnonzero(bits).astype(np.uint32)
    if not len(positions):
        return None
    if len(positions) * (4 + dtype.lane_bytes) >= bits.nbytes:
        return Flip(None, bits)
    return Flip(positions, bits[positions])


def flip_over(lanes: NDArray[Any], flip: Flip) -> None:
    """Changes a scratch copy of a chunk. Raises `Corrupt` when the flip is for another chunk."""
    if flip.positions is None:
        if len(flip.bits) != len(lanes):
            raise Corrupt("a flip has another length than its chunk")
        lanes ^= flip.bits
        return
    if len(flip.positions) and int(flip.positions[-1]) >= len(lanes):
        raise Corrupt("a flip reaches beyond its chunk")
    lanes[flip.positions] ^= flip.bits


def pack(dtype: DType, flip: Flip) -> Packed:
    """To bytes."""
    gaps = b""
    if flip.positions is not None:
        gaps = encode_snapshot(_GAPS, np.diff(flip.positions, prepend=np.uint32(0)).astype("<u4")).frame
    return Packed(flip.lanes, gaps, encode_snapshot(dtype, flip.bits).frame)


def unpack(dtype: DType, packed: Packed, chunk_lanes: int) -> Flip:
    """From bytes. Raises `Corrupt` for what `pack` did not make of a chunk of that many lanes."""
    if packed.lanes > chunk_lanes or (not packed.positions and packed.lanes != chunk_lanes):
        raise Corrupt("a flip has more lanes than its chunk")
    bits = lanes_of(_plain(dtype, packed.bits, packed.lanes), dtype.lane_bytes)
    if not packed.positions:
        return Flip(None, bits)
    gaps = lanes_of(_plain(_GAPS, packed.positions, packed.lanes), 4)
    positions = np.cumsum(gaps, dtype=np.uint64)
    if len(positions) and (int(positions[-1]) >= chunk_lanes or (gaps[1:] == 0).any()):
        raise Corrupt("the positions of a flip do not ascend within its chunk")
    return Flip(positions.astype(np.uint32), bits)


def _plain(dtype: DType, frame: bytes, lanes: int) -> memoryview:
    found = decode(dtype, frame, None, lanes)
    if not isinstance(found, np.ndarray):
        raise Corrupt("a flip is not made of whole frames")
    return found.data
