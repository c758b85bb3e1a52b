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
constexpr unsigned kDenseNumerator = 3, kDenseDenominator = 8;
constexpr uint8_t kClassGapId = 2;

constexpr size_t frame_limit(size_t nbytes) { return nbytes + nbytes / 100 + 64; }

}  // namespace weightsync
