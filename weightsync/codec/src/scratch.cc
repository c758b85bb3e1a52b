#include "scratch.h"

#include <cstdlib>
#include <new>

namespace weightsync {
namespace {

struct Block {
    void* data = nullptr;
    size_t bytes = 0;
    ~Block() { std::free(data); }
};

thread_local Block blocks[static_cast<size_t>(Slot::Count)];

}  // namespace

void* scratch_bytes(Slot slot, size_t bytes) {
    Block& block = blocks[static_cast<size_t>(slot)];
    if (block.bytes < bytes || block.data == nullptr) {
        std::free(block.data);
        block = Block{};
        size_t rounded = (bytes + bytes / 4 + 64 + 63) / 64 * 64;
        void* data = std::aligned_alloc(64, rounded);
        if (data == nullptr) throw std::bad_alloc();
        block.data = data;
        block.bytes = rounded - 64;
    }
    return block.data;
}

}  // namespace weightsync
