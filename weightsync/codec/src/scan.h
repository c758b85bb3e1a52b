// The two passes over whole chunks that every level does its own way: which lanes changed, and who belongs to which class.
// Part of every level: see level.h.
#include "policy.h"
#include "scratch.h"

namespace weightsync::WS_LEVEL {

constexpr size_t kBlock = 64;                 // lanes that one mask covers
constexpr size_t kTileBlocks = 64;            // blocks whose masks stay in the first-level cache
constexpr size_t kTile = kBlock * kTileBlocks;  // lanes

template <class T>
inline T key(T lane, bool is_float) {
    constexpr unsigned width = sizeof(T) * 8;
    T flip = static_cast<T>(T{0} - static_cast<T>(lane >> (width - 1))) >> 1;
    return is_float ? static_cast<T>(lane ^ flip) : lane;
}

// Classes of lanes: the exponent less `first`, clamped to 0 .. classes - 1.
struct Window {
    unsigned shift, exponent_mask, first, classes;

    template <class T>
    unsigned of(T lane) const {
        return of_exponent(static_cast<unsigned>(lane >> shift) & exponent_mask);
    }

    unsigned of_exponent(unsigned exponent) const {
        unsigned above = exponent > first ? exponent - first : 0;
        return above < classes ? above : classes - 1;
    }
};

// Per block of a tile: which lanes belong to each class, and how many members of each class came before the block.
// One more row of ranks follows the last block.
struct Tile {
    alignas(64) uint64_t members[kTileBlocks][kMaxClasses];
    alignas(64) uint32_t ranks[kTileBlocks + 1][kMaxClasses];
};

// The changed lanes of a chunk, in ascending order.
template <class T>
struct ChangedLanes {
    uint32_t* positions;
    T *before, *after;
    size_t count;
};

// How many ascending numbers `take_below` looks at.
constexpr size_t kTake = 16;

// Room for one more block: a block is written whole before its changes are counted.
constexpr size_t kSlack = 2 * kBlock;

}  // namespace weightsync::WS_LEVEL

#if defined(WS_AVX512)
#include "scan_avx512.h"
#else
#include "scan_plain.h"
#endif

namespace weightsync::WS_LEVEL {

// Finds the changed lanes; false as soon as there are more than `limit`, for which (plus kSlack) `found` has room.
template <class T>
inline bool find_changes(const uint8_t* before, const uint8_t* after, size_t lanes, size_t limit, ChangedLanes<T>& found) {
    found.count = 0;
    size_t i = 0;
    for (; i + kBlock <= lanes; i += kBlock) {
        find_in_block<T>(before + i * sizeof(T), after + i * sizeof(T), static_cast<uint32_t>(i), found);
        if (found.count > limit) return false;
    }
    for (; i < lanes; i++) {
        T old_lane = load<T>(before, i), new_lane = load<T>(after, i);
        if (old_lane == new_lane) continue;
        found.positions[found.count] = static_cast<uint32_t>(i);
        found.before[found.count] = old_lane;
        found.after[found.count++] = new_lane;
    }
    return found.count <= limit;
}

// Fills `tile` from up to kTile lanes; `carry` holds the ranks before it and then those after it.
template <class T>
inline void scan_tile(const Scanner<T>& scanner, const uint8_t* data, size_t lanes, Tile& tile, uint32_t* carry) {
    std::memcpy(tile.ranks[0], carry, sizeof tile.ranks[0]);
    size_t blocks = lanes / kBlock, rest = lanes % kBlock;
    scanner.whole(data, blocks, tile);
    if (rest) {
        alignas(64) uint8_t padded[kBlock * sizeof(T)] = {};
        std::memcpy(padded, data + blocks * kBlock * sizeof(T), rest * sizeof(T));
        scanner.partial(padded, rest, blocks++, tile);
    }
    std::memcpy(carry, tile.ranks[blocks], sizeof tile.ranks[0]);
}

}  // namespace weightsync::WS_LEVEL
