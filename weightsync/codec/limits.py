"""Bounds that encoder and decoder share. The kernel holds the same numbers in `src/limits.h`."""

MAX_LANES = 1 << 24  # in one chunk; positions and gaps stay far below 2^32
MAX_CLASSES = 16
MAX_GAP_PARAMETER = 24  # Rice parameter of gaps
MAX_MAGNITUDE_PARAMETER = 59  # Rice parameter of magnitudes; UNARY_LIMIT << 59 fits 64 bits
UNARY_LIMIT = 24  # a magnitude whose Rice quotient reaches this is written out in full

ZSTD_WINDOW_BYTES = 8 << 20
MIN_ZSTD_BYTES = 64  # a shorter plane is stored as it is

# Above this share of changed lanes, in 32ths by lane bytes, class-gap coding takes longer than sending the whole chunk.
DENSE_ABOVE = {1: 10, 2: 10, 4: 10, 8: 12}
# Up to this share several classes are worth their time.
CLASSES_UP_TO = {1: 4, 2: 32, 4: 32, 8: 32}


def frame_limit(nbytes: int) -> int:
    """The longest frame, in bytes, that a chunk of `nbytes` may have: raw + 1 %, and a header."""
    return nbytes + nbytes // 100 + 64
