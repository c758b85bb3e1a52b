// What the kernel knows of an element type, and the integer keys of lanes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "lanes and bit strings are read as the processor's own integers");

namespace weightsync {

struct Spec {
    unsigned lane_bytes;  // 1, 2, 4 or 8
    bool is_float;        // sign and magnitude; otherwise the bits are the key
    unsigned exponent_shift, exponent_bits;  // 0 bits: no exponent, hence one class

    // The packing of `kernel.py`.
    static Spec unpack(uint32_t code) { return {code & 0xff, ((code >> 8) & 0xff) != 0, (code >> 16) & 0xff, code >> 24}; }
    bool valid() const {
        bool known = lane_bytes == 1 || lane_bytes == 2 || lane_bytes == 4 || lane_bytes == 8;
        return known && exponent_bits <= 11 && exponent_shift + exponent_bits <= 8 * lane_bytes;
    }
};

// Lanes are read and written through these two: buffers come from Python and need not be aligned.
template <class T>
static inline T load(const uint8_t* data, size_t i) {
    T value;
    std::memcpy(&value, data + i * sizeof(T), sizeof(T));
    return value;
}

template <class T>
static inline void store(uint8_t* data, size_t i, T value) {
    std::memcpy(data + i * sizeof(T), &value, sizeof(T));
}

}  // namespace weightsync
