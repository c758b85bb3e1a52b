// Sums of lanes weighted by their place, mod 2^64. Part of every level: see level.h.
#include "scan.h"

namespace weightsync::WS_LEVEL {

inline uint64_t weight(uint64_t place) {
    uint64_t z = (place + 1) * 0x9E3779B97F4A7C15u;
    z ^= z >> 32;
    z *= 0xD6E8FEB86659FD93u;
    z ^= z >> 32;
    return z | 1;
}

template <class T>
uint64_t chunk_sum(const uint8_t* data, size_t lanes, uint64_t first_lane) {
    uint64_t sum = 0;
    for (size_t i = 0; i < lanes; i++) sum += load<T>(data, i) * weight(first_lane + i);
    return sum;
}

template <class T>
uint64_t changes_sum(const uint32_t* positions, const uint8_t* before, const uint8_t* after, size_t count, uint64_t first_lane) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) sum += (uint64_t{load<T>(after, i)} - load<T>(before, i)) * weight(first_lane + positions[i]);
    return sum;
}

}  // namespace weightsync::WS_LEVEL
