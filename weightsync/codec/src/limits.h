// Bounds that encoder and decoder share; `limits.py` holds the same numbers.
#pragma once
#include <cstddef>
#include <cstdint>

namespace weightsync {

constexpr size_t kMaxLanes = size_t{1} << 24;
constexpr unsigned kMaxClasses = 16;
constexpr unsigned kMaxGapParameter = 24;
constexpr unsigned kMaxMagnitudeParameter = 59;  // so that kUnaryLimit << k fits 64 bits
constexpr unsigned kUnaryLimit = 24;
// The most changed lanes, in 32ths, that a class-gap frame may hold, and that one of several classes may.
constexpr unsigned dense_above(size_t lane_bytes) { return lane_bytes == 8 ? 12 : 10; }
constexpr unsigned classes_up_to(size_t lane_bytes) { return lane_bytes == 1 ? 4 : 32; }
constexpr uint8_t kClassGapId = 2;

constexpr size_t frame_limit(size_t nbytes) { return nbytes + nbytes / 100 + 64; }

}  // namespace weightsync
