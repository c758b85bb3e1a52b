"""Codec ids: the first byte of every frame. Append-only: an id is never reused, nor its meaning changed."""

from enum import IntEnum


class Codec(IntEnum):
    """How a frame is coded; `proto/FORMAT.md` gives the bytes."""

    SAME = 0  # never written: a chunk without changes has no frame
    RAW = 1
    CLASS_GAP = 2
    DENSE = 3
    PLANES = 4
