// Working memory that each thread keeps between calls: fresh pages would cost more than the coding.
#pragma once
#include <cstddef>
#include <cstdint>

namespace weightsync {

enum class Slot { Positions, Old, New, Classes, Gaps, Differences, Exceptions, Excess, Frame, Ranks, Histogram, Count };

// At least `bytes` bytes, 64-byte aligned; what was in the slot is lost. Throws std::bad_alloc.
void* scratch_bytes(Slot slot, size_t bytes);

template <class T>
static inline T* scratch(Slot slot, size_t count) {
    return static_cast<T*>(scratch_bytes(slot, count * sizeof(T)));
}

}  // namespace weightsync
