// The portable level; its compiler flags stand in CMakeLists.txt.
#define WS_LEVEL portable_level
#include "level.h"

namespace weightsync {
constexpr Kernels portable_kernels = WS_LEVEL::make_kernels("portable");
}
