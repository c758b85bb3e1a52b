"""Rice codes with quotients and remainders kept apart, and the choice of their parameters.

A list of values v with parameter k is written as: every v mod 2^k in k bits, then every v >> k in unary. Keeping the two apart costs
nothing and lets a decoder read the remainders without following the unary codes. All choices use integers only, so that
every implementation makes the same ones.
"""

import numpy as np

from weightsync.codec.limits import MAX_MAGNITUDE_PARAMETER, UNARY_LIMIT
from weightsync.codec.reference.bits import U64, BitReader, Bits, Malformed, fixed, unary

_QUOTIENT_OF_EXCESS = (0, 1, 3, 6, 12)  # typical v >> k of a value with k + index significant bits


def gap_parameter(total: int, count: int) -> int:
    """Best parameter for `count` geometrically distributed values that add up to `total`.

    That is the smallest k with 2^k >= ln(0.618) / ln(m / (m + 1)), about 0.4812 (m + 1/2), for the mean m.
    """
    k = 0
    while (count << k) * 2048 < 985 * total + 493 * count:
        k += 1
    return k


def gap_bits(total: int, count: int, k: int) -> int:
    """Upper bound of the bits that such values take."""
    return count * (k + 1) + (total >> k)


def put_gaps(gaps: U64, k: int) -> list[Bits]:
    """Remainders, then quotients."""
    return [fixed(gaps, k), unary(gaps >> np.uint64(k))]


def get_gaps(reader: BitReader, count: int, k: int) -> U64:
    """What `put_gaps` wrote."""
    low = reader.fixed(count, k)
    return (reader.unary(count) << np.uint64(k)) | low


def length_histogram(values: U64) -> list[int]:
    """How many of `values` have 0, 1, ... 64 significant bits."""
    bounds = np.array([1 << length for length in range(64)], np.uint64)
    return [int(count) for count in np.bincount(np.searchsorted(bounds, values, side="right"), minlength=65)]


def magnitude_parameter(histogram: list[int], width: int) -> tuple[int, int]:
    """(k, estimated bits) of the cheapest parameter for values of these lengths in lanes of `width` bits; the smaller k of equals."""
    longest = max((length for length, count in enumerate(histogram) if count), default=0)
    costs = [_magnitude_bits(histogram, k, width) for k in range(min(longest, width - 1, MAX_MAGNITUDE_PARAMETER) + 1)]
    k = costs.index(min(costs))
    return k, costs[k]


def _magnitude_bits(histogram: list[int], k: int, width: int) -> int:
    bits = sum(histogram) * (k + 1)
    for length in range(k + 1, 65):
        excess = length - k
        bits += histogram[length] * (_QUOTIENT_OF_EXCESS[excess] if excess < len(_QUOTIENT_OF_EXCESS) else UNARY_LIMIT + width)
    return bits


def put_magnitudes(values: U64, k: int, width: int) -> list[Bits]:
    """Remainders, quotients capped at UNARY_LIMIT, then the capped values in full."""
    quotients = values >> np.uint64(k)
    capped = np.minimum(quotients, np.uint64(UNARY_LIMIT))
    return [fixed(values, k), unary(capped), fixed(values[quotients >= UNARY_LIMIT], width)]


def get_magnitudes(reader: BitReader, count: int, k: int, width: int) -> U64:
    """What `put_magnitudes` wrote; raises `Malformed` for what it never writes."""
    low = reader.fixed(count, k)
    quotients = reader.unary(count)
    if (quotients > UNARY_LIMIT).any():
        raise Malformed("a unary run is too long")
    values = (quotients << np.uint64(k)) | low
    escaped = quotients == UNARY_LIMIT
    full = reader.fixed(int(escaped.sum()), width)
    if (full >> np.uint64(k) < UNARY_LIMIT).any() or ((full & np.uint64((1 << k) - 1)) != low[escaped]).any():
        raise Malformed("an escaped magnitude contradicts its code")
    values[escaped] = full
    return values
