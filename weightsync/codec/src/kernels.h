// The operations of the kernel. Each dispatch level fills one table of them; all levels give the same results.
#pragma once
#include "spec.h"

namespace weightsync {

struct EncodeJob {
    Spec spec;
    const uint8_t *old_data, *new_data;
    size_t lanes;
    uint64_t first_lane;  // place of the chunk in its tensor
    unsigned classes;     // 0: chosen from the number of changes
};

struct EncodeResult {
    bool dense = false;  // the dense form should be taken; the rest is void
    const uint8_t* frame = nullptr;  // in scratch memory of this thread, until its next call
    size_t frame_bytes = 0;          // 0: nothing changed
    uint64_t changed = 0, sum_delta = 0;
};

struct DecodeJob {
    Spec spec;
    const uint8_t* frame;
    size_t frame_bytes;
    size_t lanes;
    const uint8_t* base;  // null: differences are wanted instead of values
};

// Memory for the result of a decoder, which knows its size only after the header.
struct Output {
    uint32_t* positions = nullptr;
    uint8_t* values = nullptr;
    size_t count = 0;
    virtual void allocate(size_t changes, size_t lane_bytes) = 0;
  protected:
    ~Output() = default;
};

struct Totals {
    uint64_t changed, sum_delta;
};

struct Kernels {
    const char* name;
    EncodeResult (*encode)(const EncodeJob&);
    const char* (*decode)(const DecodeJob&, Output&);  // null, or what is wrong with the frame
    Totals (*difference_planes)(const EncodeJob&, uint8_t* planes);
    void (*apply_difference_planes)(const Spec&, const uint8_t* planes, const uint8_t* base, size_t lanes, uint8_t* out);
    void (*differences_of_planes)(unsigned lane_bytes, const uint8_t* planes, size_t lanes, uint8_t* out);
    void (*split_planes)(unsigned lane_bytes, const uint8_t* data, size_t lanes, uint8_t* planes);
    void (*join_planes)(unsigned lane_bytes, const uint8_t* planes, size_t lanes, uint8_t* out);
    uint64_t (*chunk_sum)(unsigned lane_bytes, const uint8_t* data, size_t lanes, uint64_t first_lane);
    uint64_t (*changes_sum)(unsigned lane_bytes, const uint32_t* positions, const uint8_t* old_values, const uint8_t* new_values,
                            size_t count, uint64_t first_lane);
    bool (*gather)(unsigned lane_bytes, const uint8_t* data, size_t lanes, const uint32_t* positions, size_t count, uint8_t* out);
    bool (*scatter)(unsigned lane_bytes, uint8_t* data, size_t lanes, const uint32_t* positions, size_t count, const uint8_t* values);
};

extern const Kernels portable_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

const Kernels& kernels();            // the level in use; at first the best one
bool use_level(const char* name);    // false where this processor lacks it

}  // namespace weightsync
