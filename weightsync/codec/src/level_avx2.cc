// The avx2 level; its compiler flags stand in CMakeLists.txt.
#define WS_LEVEL avx2_level
#include "level.h"

namespace weightsync {
constexpr Kernels avx2_kernels = WS_LEVEL::make_kernels("avx2");
}
