// The avx512 level; its compiler flags stand in CMakeLists.txt.
#define WS_LEVEL avx512_level
#define WS_AVX512
#include "level.h"

namespace weightsync {
constexpr Kernels avx512_kernels = WS_LEVEL::make_kernels("avx512");
}
