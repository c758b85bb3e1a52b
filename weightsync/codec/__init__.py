"""Lossless delta codec for model weights: class-gap, dense, raw and snapshot frames (`proto/FORMAT.md`)."""

from weightsync.codec.api import (
    Changes,
    Encoded,
    changes_sum,
    chunk_sum,
    decode,
    decode_differences,
    dispatch_level,
    encode_delta,
    encode_snapshot,
    gather,
    scatter,
)
from weightsync.codec.ids import Codec

__all__ = [
    "Changes",
    "Codec",
    "Encoded",
    "changes_sum",
    "chunk_sum",
    "decode",
    "decode_differences",
    "dispatch_level",
    "encode_delta",
    "encode_snapshot",
    "gather",
    "scatter",
]
