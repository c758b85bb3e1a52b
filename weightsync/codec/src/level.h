// One dispatch level: everything below this header is compiled once per level, with that level's instructions, in its own namespace
// WS_LEVEL, so that no function of a higher level can be linked into a lower one. For the same reason no standard templates are used here.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels.h"
#include "planes.h"

namespace weightsync {
namespace WS_LEVEL {

// Calls `use` with a value of the lane type of `lane_bytes`.
template <class Use>
auto with_lane(unsigned lane_bytes, Use use) {
    switch (lane_bytes) {
        case 1: return use(uint8_t{});
        case 2: return use(uint16_t{});
        case 4: return use(uint32_t{});
        default: return use(uint64_t{});
    }
}

#define WS_FORWARD(name, lane_bytes, ...) with_lane(lane_bytes, [&](auto lane) { return name<decltype(lane)>(__VA_ARGS__); })

constexpr Kernels make_kernels(const char* name) {
    return {
        name,
        [](const EncodeJob& job) { return with_lane(job.spec.lane_bytes, [&](auto lane) { return Encoder<decltype(lane)>(job).run(); }); },
        [](const DecodeJob& job, Output& out) {
            return with_lane(job.spec.lane_bytes, [&](auto lane) { return Decoder<decltype(lane)>(job, out).run(); });
        },
        [](const EncodeJob& job, uint8_t* planes) { return WS_FORWARD(difference_planes, job.spec.lane_bytes, job, planes); },
        [](const Spec& spec, const uint8_t* planes, const uint8_t* base, size_t lanes, uint8_t* out) {
            WS_FORWARD(apply_difference_planes, spec.lane_bytes, spec, planes, base, lanes, out);
        },
        [](unsigned width, const uint8_t* planes, size_t lanes, uint8_t* out) { WS_FORWARD(differences_of_planes, width, planes, lanes, out); },
        [](unsigned width, const uint8_t* data, size_t lanes, uint8_t* planes) { WS_FORWARD(split_planes, width, data, lanes, planes); },
        [](unsigned width, const uint8_t* planes, size_t lanes, uint8_t* out) { WS_FORWARD(join_planes, width, planes, lanes, out); },
        [](unsigned width, const uint8_t* data, size_t lanes, uint64_t first_lane) { return WS_FORWARD(chunk_sum, width, data, lanes, first_lane); },
        [](unsigned width, const uint32_t* positions, const uint8_t* before, const uint8_t* after, size_t count, uint64_t first_lane) {
            return WS_FORWARD(changes_sum, width, positions, before, after, count, first_lane);
        },
        [](unsigned width, const uint8_t* data, size_t lanes, const uint32_t* positions, size_t count, uint8_t* out) {
            return WS_FORWARD(gather, width, data, lanes, positions, count, out);
        },
        [](unsigned width, uint8_t* data, size_t lanes, const uint32_t* positions, size_t count, const uint8_t* values) {
            return WS_FORWARD(scatter, width, data, lanes, positions, count, values);
        },
    };
}

#undef WS_FORWARD

}  // namespace WS_LEVEL
}  // namespace weightsync
