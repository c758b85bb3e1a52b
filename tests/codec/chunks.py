"""Pairs of chunks for tests: every type, every kind of bit pattern, every kind of change."""

import numpy as np
from hypothesis import strategies as st

from weightsync.format.dtypes import DTYPES, Order

ALL = tuple(DTYPES.values())


def lane_type(dtype):
    return np.dtype(f"<u{dtype.lane_bytes}")


def special(dtype):
    """Zeros of both signs, infinities, NaNs with payloads, subnormals, and the ends of the integers."""
    width = 8 * dtype.lane_bytes
    top, ones = 1 << (width - 1), (1 << width) - 1
    found = [0, 1, 2, top - 1, top, top + 1, ones - 1, ones]
    if dtype.order is Order.FLOAT:
        infinity = ((1 << dtype.exponent_bits) - 1) << dtype.exponent_shift
        found += [infinity, infinity | 1, infinity - 1, top | infinity, min(top | infinity | 3, ones), 1 << dtype.exponent_shift]
    return [value & ones for value in found]


@st.composite
def pairs(draw, dtypes=ALL, most=300):
    """(dtype, old, new): arrays of lanes."""
    dtype = draw(st.sampled_from(dtypes))
    lanes = draw(st.sampled_from([0, 1, 2, 63, 64, 65, 127, 128, most]) | st.integers(0, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    old = draw(st.sampled_from([noise, near_one_exponent, specials]))(dtype, lanes, rng)
    change = draw(st.sampled_from([steps, noise_change, to_specials, heavy_tail]))
    density = draw(st.sampled_from([0.0, 0.01, 0.1, 0.2, 0.9, 1.0]))
    return dtype, old, changed(old, density, lambda lanes: change(dtype, lanes, rng), rng)


def changed(old, density, change, rng):
    new = old.copy()
    where = rng.random(len(old)) < density
    new[where] = change(old[where])
    return new


def noise(dtype, lanes, rng):
    return rng.integers(0, 1 << 8 * dtype.lane_bytes, lanes, dtype=lane_type(dtype), endpoint=False)


def near_one_exponent(dtype, lanes, rng):
    """Like weights: a few exponents hold nearly all lanes."""
    if not dtype.exponent_bits:
        return noise(dtype, lanes, rng)
    top = (1 << dtype.exponent_bits) - 2
    exponents = np.maximum(top - rng.geometric(0.4, lanes), 0).astype(np.uint64) << np.uint64(dtype.exponent_shift)
    rest = noise(dtype, lanes, rng) & lane_type(dtype).type(~(((1 << dtype.exponent_bits) - 1) << dtype.exponent_shift) & _ones(dtype))
    return rest | exponents.astype(lane_type(dtype))


def specials(dtype, lanes, rng):
    return rng.choice(np.array(special(dtype), lane_type(dtype)), lanes)


def steps(dtype, lanes, rng):
    return lanes + rng.choice(np.array([1, 2, _ones(dtype), _ones(dtype) - 1], lanes.dtype), len(lanes))


def noise_change(dtype, lanes, rng):
    return noise(dtype, len(lanes), rng)


def to_specials(dtype, lanes, rng):
    return specials(dtype, len(lanes), rng)


def heavy_tail(dtype, lanes, rng):
    """Mostly small steps, some as large as the lane allows: escapes."""
    sizes = np.minimum(np.abs(rng.standard_cauchy(len(lanes))) ** 3, 2.0**62).astype(np.uint64)
    return lanes + sizes.astype(lanes.dtype)


def _ones(dtype):
    return (1 << 8 * dtype.lane_bytes) - 1


def weights(lanes, rng):
    """bf16 bit patterns of normally distributed weights."""
    return (rng.standard_normal(lanes).astype("<f4").view("<u4") >> 16).astype("<u2")


def trained(old, rate, rng):
    """One optimiser step on fp32 masters that lie anywhere within the rounding of `old`: the density falls with the exponent."""
    value = (old.astype("<u4") << 16).view("<f4").astype(np.float64)
    ulp = np.ldexp(1.0, np.maximum((old >> 7 & 255).astype(int), 1) - 134)
    master = value + (rng.random(len(old)) - 0.5) * ulp + rng.standard_normal(len(old)) * rate
    bits = master.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
