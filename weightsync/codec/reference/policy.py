"""Choices of the encoder that a decoder need not know; the kernel makes the same ones (`src/policy.h`)."""

import numpy as np
from numpy.typing import NDArray

from weightsync.codec.limits import CLASSES_UP_TO, DENSE_ABOVE
from weightsync.format.dtypes import DType

# A class costs three to five bytes of header; these many changes repay the next step.
_CLASSES_FROM = ((2048, 16), (512, 12), (128, 8), (32, 4), (16, 2))


def change_limit(lanes: int, dtype: DType, wanted: int) -> int:
    """The most changes that are class-gap coded: beyond, the dense form is the faster. Whoever asks for classes has the time."""
    return lanes if wanted > 1 else lanes * DENSE_ABOVE[dtype.lane_bytes] // 32 + 16


def too_large(bits: int, nbytes: int) -> bool:
    """Whether a class-gap frame of `bits` saves less than an eighth of a chunk of `nbytes`."""
    return bits > nbytes * 7


def class_count(changed: int, lanes: int, dtype: DType, wanted: int) -> int:
    """Number of classes for a chunk; `wanted` 0 leaves the choice to the number of changes."""
    hurry = changed > lanes * CLASSES_UP_TO[dtype.lane_bytes] // 32
    fitting = 1 if hurry else next((classes for least, classes in _CLASSES_FROM if changed >= least), 1)
    return min(wanted or fitting, 1 << dtype.exponent_bits)


def first_exponent(changed_exponents: NDArray[np.int64], exponent_bits: int, classes: int) -> int:
    """The lowest start of the window of `classes` exponents that holds the most changes."""
    if classes == 1:
        return 0
    histogram = np.bincount(changed_exponents, minlength=1 << exponent_bits)
    sums = np.concatenate(([0], np.cumsum(histogram)))
    return int(np.argmax(sums[classes:] - sums[:-classes]))
