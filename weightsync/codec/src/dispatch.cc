// Which level this processor can run.
#include <atomic>
#include <cstring>

#include "kernels.h"

namespace weightsync {
namespace {

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt"); }

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
           __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("gfni");
}
#endif

const Kernels* best() {
#if defined(__x86_64__)
    if (has_avx512()) return &avx512_kernels;
    if (has_avx2()) return &avx2_kernels;
#endif
    return &portable_kernels;
}

std::atomic<const Kernels*>& current() {
    static std::atomic<const Kernels*> level{best()};
    return level;
}

}  // namespace

const Kernels& kernels() { return *current().load(std::memory_order_relaxed); }

bool use_level(const char* name) {
    const Kernels* found = nullptr;
    if (std::strcmp(name, "portable") == 0) found = &portable_kernels;
#if defined(__x86_64__)
    if (std::strcmp(name, "avx2") == 0 && has_avx2()) found = &avx2_kernels;
    if (std::strcmp(name, "avx512") == 0 && has_avx512()) found = &avx512_kernels;
#endif
    if (found == nullptr) return false;
    current().store(found, std::memory_order_relaxed);
    return true;
}

}  // namespace weightsync
