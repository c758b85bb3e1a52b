"""The operations that kernel and reference both offer; each is a module with these functions.

Chunks are contiguous buffers of lanes. A `ValueError` says what is wrong with a frame or an argument; `api` names it properly.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from weightsync.format.dtypes import DType

Chunk = Any  # a contiguous buffer: bytes, memoryview, NDArray ...
Lanes = NDArray[Any]  # unsigned integers of the lanes' width
Positions = NDArray[np.uint32]  # lanes within the chunk, ascending
Planes = NDArray[np.uint8]  # one plane after the other


class Transforms(Protocol):
    """All work on lanes that grows with their number, zstd excepted."""

    def level(self) -> str:
        """avx512, avx2, portable or reference."""

    def encode_classgap(self, dtype: DType, old: Chunk, new: Chunk, first_lane: int, classes: int) -> tuple[bytes | None, int, int]:
        """(frame, changed lanes, gain of the sum); the frame is empty where nothing changed.

        None asks for the dense form; the two numbers are 0 then. `classes` 0 leaves their number to the encoder.
        """

    def decode_classgap(self, dtype: DType, frame: Chunk, base: Chunk) -> tuple[Positions, Lanes]:
        """Changed lanes and their new values."""

    def decode_differences(self, dtype: DType, frame: Chunk, lanes: int) -> tuple[Positions, Lanes]:
        """Changed lanes and key differences of a blind class-gap frame."""

    def difference_planes(self, dtype: DType, old: Chunk, new: Chunk, first_lane: int) -> tuple[Planes, int, int]:
        """(nibble planes of the zigzag key differences, changed lanes, gain of the sum)."""

    def apply_difference_planes(self, dtype: DType, planes: Planes, base: Chunk) -> NDArray[np.uint8]:
        """All bytes of the new chunk."""

    def differences_of_planes(self, planes: Planes, lanes: int, lane_bytes: int) -> Lanes:
        """The key difference of every lane."""

    def split_planes(self, data: Chunk, lane_bytes: int) -> Planes:
        """Byte planes of a chunk."""

    def join_planes(self, planes: Planes, lane_bytes: int) -> NDArray[np.uint8]:
        """The bytes of a chunk from its byte planes."""

    def chunk_sum(self, data: Chunk, lane_bytes: int, first_lane: int) -> int:
        """A chunk's part of its tensor's sum."""

    def changes_sum(self, positions: Positions, old: Lanes, new: Lanes, first_lane: int) -> int:
        """What the sum gains when the lanes at `positions` go from `old` to `new`."""

    def gather(self, source: Chunk, positions: Positions, lane_bytes: int) -> Lanes:
        """The lanes at `positions`."""

    def scatter(self, target: Chunk, positions: Positions, values: Lanes) -> None:
        """Writes them; nothing, when one position is out of range."""
