// Rice codes with remainders and quotients kept apart, and the choice of their parameters in integers.
// The reasons stand in `reference/rice.py`, which makes the same choices. Part of every level: see level.h.
#include "header.h"

namespace weightsync::WS_LEVEL {

inline unsigned gap_parameter(uint64_t total, uint64_t count) {
    unsigned k = 0;
    while ((count << k) * 2048 < 985 * total + 493 * count) k++;
    return k;
}

inline uint64_t gap_bits(uint64_t total, uint64_t count, unsigned k) { return count * (k + 1) + (total >> k); }

// How many values have 0, 1, ... 64 significant bits.
struct Lengths {
    uint32_t of[65] = {};
    unsigned longest = 0;

    void add(uint64_t value) {
        unsigned length = significant_bits(value);
        of[length]++;
        if (length > longest) longest = length;
    }
};

struct Choice {
    unsigned k;
    uint64_t bits;  // what the encoder expects them to be
};

inline Choice magnitude_parameter(const Lengths& lengths, uint64_t count, unsigned width) {
    static const unsigned typical_quotient[5] = {0, 1, 3, 6, 12};
    Choice best{0, ~uint64_t{0}};
    for (unsigned k = 0; k <= lengths.longest && k < width && k <= kMaxMagnitudeParameter; k++) {
        uint64_t bits = count * (k + 1);
        for (unsigned length = k + 1; length <= lengths.longest; length++) {
            unsigned excess = length - k;
            bits += uint64_t{lengths.of[length]} * (excess < 5 ? typical_quotient[excess] : kUnaryLimit + width);
        }
        if (bits < best.bits) best = {k, bits};
    }
    return best;
}

// Low k bits of each value, as many values at a time as fit into one put.
template <class T>
inline void put_remainders(BitWriter& out, const T* values, size_t count, unsigned k) {
    uint64_t mask = low_mask(k);
    size_t i = 0;
    if (k <= 14) {
        for (; i + 4 <= count; i += 4) {
            uint64_t low = (values[i] & mask) | (values[i + 1] & mask) << k, high = (values[i + 2] & mask) | (values[i + 3] & mask) << k;
            out.put(low | high << 2 * k, 4 * k);
        }
    }
    for (; i < count; i++) out.put_wide(values[i] & mask, k);
}

// quotient(i) for each i below `count`, two at a time where they are short.
template <class Quotient>
inline void put_quotients(BitWriter& out, size_t count, Quotient quotient) {
    size_t i = 0;
    for (; i + 2 <= count; i += 2) {
        uint64_t first = quotient(i), second = quotient(i + 1);
        if (first + second <= 54) {
            out.put(uint64_t{1} << first | uint64_t{2} << (first + second), static_cast<unsigned>(first + second) + 2);
        } else {
            out.put_unary(first);
            out.put_unary(second);
        }
    }
    if (i < count) out.put_unary(quotient(i));
}

inline void put_gaps(BitWriter& out, const uint32_t* gaps, size_t count, unsigned k) {
    put_remainders(out, gaps, count, k);
    put_quotients(out, count, [=](size_t i) { return uint64_t{gaps[i]} >> k; });
}

template <class T>
inline void put_magnitudes(BitWriter& out, const T* values, size_t count, unsigned k, unsigned width) {
    put_remainders(out, values, count, k);
    auto quotient = [=](size_t i) { return uint64_t{values[i]} >> k; };
    put_quotients(out, count, [=](size_t i) { return quotient(i) < kUnaryLimit ? quotient(i) : kUnaryLimit; });
    for (size_t i = 0; i < count; i++)
        if (quotient(i) >= kUnaryLimit) out.put_wide(values[i], width);
}

// Turns gaps into ascending ranks below `limit`. False when the data ends or a rank reaches `limit`.
inline bool get_ranks(BitReader& in, uint32_t* ranks, size_t count, unsigned k, uint64_t limit) {
    bool failed = false;
    uint64_t low = in.take(count, k, failed);
    if (failed) return false;
    uint64_t next = 0, mask = low_mask(k);
    bool ended = !in.unary(count, [&](uint64_t i, uint64_t quotient) {
        next += (quotient << k | (in.peek(low + i * k) & mask)) + 1;
        ranks[i] = static_cast<uint32_t>(next - 1);
    });
    return !ended && next <= limit;
}

// The values whose quotient was cut off stand in full behind the others, and must agree with what is known of them.
inline const char* get_escapes(BitReader& in, uint64_t* values, size_t count, unsigned k, unsigned width, uint64_t escapes) {
    bool failed = false;
    uint64_t place = in.take(escapes, width, failed);
    if (failed) return "the bit stream ends early";
    for (size_t i = 0; i < count; i++) {
        if (values[i] >> k != kUnaryLimit) continue;
        uint64_t full = in.fixed(place, width);
        if (full >> k < kUnaryLimit || ((full ^ values[i]) & low_mask(k)) != 0) return "an escaped magnitude contradicts its code";
        values[i] = full;
        place += width;
    }
    return nullptr;
}

// Reads `count` magnitudes; null or what is wrong with them.
inline const char* get_magnitudes(BitReader& in, uint64_t* values, size_t count, unsigned k, unsigned width) {
    bool failed = false, long_run = false;
    uint64_t low = in.take(count, k, failed), escapes = 0;
    if (failed) return "the bit stream ends early";
    bool complete = in.unary(count, [&](uint64_t i, uint64_t quotient) {
        long_run |= quotient > kUnaryLimit;
        escapes += quotient == kUnaryLimit;
        values[i] = quotient << k | in.fixed(low + i * k, k);
    });
    if (!complete) return "the bit stream ends inside a unary code";
    if (long_run) return "a unary run is too long";
    return escapes ? get_escapes(in, values, count, k, width, escapes) : nullptr;
}

}  // namespace weightsync::WS_LEVEL
