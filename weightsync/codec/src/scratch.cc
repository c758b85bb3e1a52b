#include "scratch.h"

#include <stdlib.h>  // posix_memalign

#include <new>

namespace weightsync {
namespace {

struct Block {
    void* data = nullptr;
    size_t bytes = 0;
    ~Block() { free(data); }
};

thread_local Block blocks[static_cast<size_t>(Slot::Count)];

}  // namespace

void* scratch_bytes(Slot slot, size_t bytes) {
    Block& block = blocks[static_cast<size_t>(slot)];
#if defined(__SANITIZE_ADDRESS__)
    bool fits = false;  // a fresh block of the exact size, so that every step beyond it is seen
    size_t wanted = bytes ? bytes : 1;
#else
    bool fits = block.data != nullptr && block.bytes >= bytes;
    size_t wanted = bytes + bytes / 4 + 64;
#endif
    if (!fits) {
        free(block.data);
        block = Block{};
        if (posix_memalign(&block.data, 64, wanted) != 0) throw std::bad_alloc();
        block.bytes = wanted;
    }
    return block.data;
}

}  // namespace weightsync
