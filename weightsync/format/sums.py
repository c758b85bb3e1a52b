"""The additive fingerprint of a tensor: sum of bits(x_i) * w(i) modulo 2^64.

It adds up over any partition of a tensor and follows from the changed lanes alone, so a live engine's weights can be proven without
gathering them. The weight of a lane is an odd, well mixed function of its index in the tensor; `proto/FORMAT.md` fixes it.
It guards against accidents, not against somebody who chooses the bits.
"""

import numpy as np
from numpy.typing import NDArray

_MULTIPLIER_1 = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_2 = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_BLOCK = 1 << 20


def weights(index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """w(i) of each lane index, uint64, any shape."""
    mixed = (index + np.uint64(1)) * _MULTIPLIER_1
    mixed ^= mixed >> _HALF
    mixed *= _MULTIPLIER_2
    mixed ^= mixed >> _HALF
    return mixed | np.uint64(1)


def tensor_sum(lanes: NDArray[np.unsignedinteger], first_lane: int = 0) -> int:
    """The sum of a run of unsigned lanes (1-D) whose first has index `first_lane` in its tensor."""
    total = 0
    for start in range(0, len(lanes), _BLOCK):
        part = lanes[start : start + _BLOCK].astype(np.uint64)
        begin = first_lane + start
        total += int((part * weights(np.arange(begin, begin + len(part), dtype=np.uint64))).sum(dtype=np.uint64))
    return total % (1 << 64)
