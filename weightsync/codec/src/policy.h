// Choices of the encoder that a decoder need not know; `reference/policy.py` makes the same ones. Part of every level: see level.h.
#include "rice.h"

namespace weightsync::WS_LEVEL {

// The most changes that are class-gap coded.
inline uint64_t change_limit(uint64_t lanes, size_t lane_bytes, unsigned wanted) {
    return wanted > 1 ? lanes : lanes * dense_above(lane_bytes) / 32 + 16;
}

inline bool too_large(uint64_t bits, uint64_t nbytes) { return bits > nbytes * 7; }

inline unsigned class_count(uint64_t changed, uint64_t lanes, const Spec& spec, unsigned wanted) {
    bool hurry = changed > lanes * classes_up_to(spec.lane_bytes) / 32;
    unsigned fitting = hurry ? 1 : changed >= 2048 ? 16 : changed >= 512 ? 12 : changed >= 128 ? 8 : changed >= 32 ? 4 : changed >= 16 ? 2 : 1;
    unsigned count = wanted ? wanted : fitting, exponents = 1u << spec.exponent_bits;
    return count < exponents ? count : exponents;
}

// The lowest start of the window of `classes` exponents that holds the most changes.
inline unsigned first_exponent(const uint32_t* histogram, unsigned exponents, unsigned classes) {
    uint64_t sum = 0;
    for (unsigned e = 0; e < classes; e++) sum += histogram[e];
    uint64_t best = sum;
    unsigned start = 0;
    for (unsigned e = classes; e < exponents; e++) {
        sum += histogram[e];
        sum -= histogram[e - classes];
        if (sum > best) {
            best = sum;
            start = e - classes + 1;
        }
    }
    return start;
}

}  // namespace weightsync::WS_LEVEL
