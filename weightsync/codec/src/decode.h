// Class-gap frames, read. Nothing is trusted: every rule is checked before a result is complete. Part of every level: see level.h.
#include "encode.h"

namespace weightsync::WS_LEVEL {

template <class T>
class Decoder {
  public:
    Decoder(const DecodeJob& job, Output& output) : job_(job), output_(output) {}

    // Null, or what is wrong.
    const char* run() {
        ByteReader in{job_.frame, job_.frame + job_.frame_bytes};
        header_ = get_header(in, job_.spec, job_.lanes);
        if (in.error) return in.error;
        if (job_.base == nullptr && header_.classes > 1) return "the frame has classes: it is no blind one";
        size_t left = static_cast<size_t>(in.end - in.at);
        if (header_.changed > left * 8) return "the bit stream ends early";
        uint8_t* bits = scratch<uint8_t>(Slot::Frame, left + 32);
        std::memcpy(bits, in.at, left);
        std::memset(bits + left, 0, 32);
        if (const char* error = read_classes({bits, 0, left * 8})) return error;
        output_.allocate(header_.changed, sizeof(T));
        output_.count = header_.changed;
        if (header_.classes > 1) return place() ? nullptr : "a position lies beyond the members of its class";
        place_blind();
        return nullptr;
    }

  private:
    const char* read_classes(BitReader in) {
        ranks_ = scratch<uint32_t>(Slot::Ranks, header_.changed + kMaxClasses + kTake);
        differences_ = scratch<T>(Slot::Differences, header_.changed + 32);
        uint32_t* ranks = ranks_;
        T* differences = differences_;
        for (unsigned c = 0; c < header_.classes; c++) {
            const ClassHeader& one = header_.of[c];
            ranks_of_[c] = ranks;
            differences_of_[c] = differences;
            if (!read_places(in, one, ranks)) return "a gap leads beyond the end";
            if (const char* error = read_differences(in, one, differences)) return error;
            ranks += one.changed;
            *ranks++ = UINT32_MAX;  // ends the class
            differences += one.changed;
        }
        return in.finished() ? nullptr : "bytes follow the end of the bit stream";
    }

    bool read_places(BitReader& in, const ClassHeader& c, uint32_t* ranks) const {
        if (!c.inverted) return get_ranks(in, ranks, c.changed, c.k, job_.lanes);
        if (c.unchanged > in.end - in.at) return false;
        uint32_t* unchanged = scratch<uint32_t>(Slot::Exceptions, c.unchanged + 1);
        uint32_t members = c.changed + c.unchanged;  // up to the last changed one
        if (!get_ranks(in, unchanged, c.unchanged, c.k, members - 1)) return false;
        unchanged[c.unchanged] = members;
        uint32_t rank = 0;
        for (uint32_t i = 0; i <= c.unchanged; i++, rank++)
            while (rank < unchanged[i]) *ranks++ = rank++;
        return true;
    }

    static const char* read_differences(BitReader& in, const ClassHeader& c, T* out) {
        bool failed = false;
        uint64_t signs = in.take(c.changed, 1, failed);
        if (failed) return "the bit stream ends early";
        for (uint32_t i = 0; i < c.changed; i += 32) put_ones(static_cast<uint32_t>(in.peek(signs + i)), out + i);
        if (c.mode == kAllOne) return nullptr;
        return c.mode == kDirect ? read_direct(in, c, out) : read_exceptions(in, c, out);
    }

    static const char* read_direct(BitReader& in, const ClassHeader& c, T* out) {
        uint64_t* values = scratch<uint64_t>(Slot::Excess, c.changed);
        if (const char* error = get_magnitudes(in, values, c.changed, c.k_magnitudes, 8 * sizeof(T))) return error;
        bool fits = true;
        for (uint32_t i = 0; i < c.changed; i++) fits &= enlarge(out[i], values[i], 1);
        return fits ? nullptr : "a difference does not fit the lane";
    }

    static const char* read_exceptions(BitReader& in, const ClassHeader& c, T* out) {
        uint32_t* places = scratch<uint32_t>(Slot::Exceptions, c.exceptions);
        if (!get_ranks(in, places, c.exceptions, c.k_exceptions, c.changed)) return "a gap leads beyond the end";
        uint64_t* values = scratch<uint64_t>(Slot::Excess, c.exceptions);
        if (const char* error = get_magnitudes(in, values, c.exceptions, c.k_magnitudes, 8 * sizeof(T))) return error;
        bool fits = true;
        for (uint32_t i = 0; i < c.exceptions; i++) fits &= enlarge(out[places[i]], values[i], 2);
        return fits ? nullptr : "a difference does not fit the lane";
    }

    // Turns the +-1 in `difference` into +-(value + least); false when no lane can differ by so much.
    static bool enlarge(T& difference, uint64_t value, unsigned least) {
        constexpr uint64_t half = uint64_t{1} << (8 * sizeof(T) - 1);
        bool negative = difference != 1;
        uint64_t size = value + least;
        difference = static_cast<T>(negative ? uint64_t{0} - size : size);
        return value <= half && size <= half - !negative;
    }

    void place_blind() {
        std::memcpy(output_.positions, ranks_, header_.changed * sizeof *ranks_);
        for (size_t i = 0; i < header_.changed; i++) {
            T value = differences_[i];
            if (job_.base) value = apply(load<T>(job_.base, ranks_[i]), value);
            store<T>(output_.values, i, value);
        }
    }

    T apply(T lane, T difference) const {
        bool is_float = job_.spec.is_float;
        return key(static_cast<T>(key(lane, is_float) + difference), is_float);
    }

    // Walks through the base tile by tile. False when it ends before the changes do.
    //
    // Where the changes are is as good as random, and a branch for each would be mispredicted. So the changes of a tile are listed class
    // after class, their lanes are searched without branches, and a bit map of the lanes puts them in order.
    bool place() {
        Tile tile;
        TileChanges found;
        unsigned mask = (1u << job_.spec.exponent_bits) - 1;
        Scanner<T> scanner({job_.spec.exponent_shift, mask, header_.first_exponent, header_.classes});
        uint32_t carry[kMaxClasses] = {};
        size_t placed = 0;
        for (size_t first = 0; first < job_.lanes && placed < header_.changed; first += kTile) {
            size_t lanes = job_.lanes - first < kTile ? job_.lanes - first : kTile;
            scan_tile(scanner, job_.base + first * sizeof(T), lanes, tile, carry);
            for (size_t b = (lanes + kBlock - 1) / kBlock + 1; b <= kTileBlocks; b++) std::memset(tile.ranks[b], 0xff, sizeof tile.ranks[b]);
            list_changes(carry, found);
            place_tile(tile, found, first, placed);
            placed += found.count;
        }
        return placed == header_.changed;
    }

    // The changes of one tile.
    struct TileChanges {
        size_t count;
        uint32_t ranks[kTile + kBlock];
        uint8_t classes[kTile + kBlock];
        T differences[kTile + kBlock];
    };

    // Takes from every class the changes whose ranks lie below `end`.
    void list_changes(const uint32_t* end, TileChanges& found) {
        size_t count = 0;
        for (unsigned c = 0; c < header_.classes; c++) {
            for (size_t taken = kTake; taken == kTake;) {
                taken = take_below(ranks_of_[c], end[c], found.ranks + count);
                std::memset(found.classes + count, static_cast<int>(c), kTake);
                std::memcpy(found.differences + count, differences_of_[c], kTake * sizeof(T));
                ranks_of_[c] += taken;
                differences_of_[c] += taken;
                count += taken;
            }
        }
        found.count = count;
    }

    // Writes the changes of the tile that starts at lane `first`, in order, from place `placed` on.
    void place_tile(const Tile& tile, const TileChanges& found, size_t first, size_t placed) {
        uint64_t changed[kTileBlocks] = {};
        uint16_t lanes[kTile + kBlock];
        for (size_t i = 0; i < found.count; i++) {
            size_t lane = find_lane(tile, found.classes[i], found.ranks[i]);
            lanes[i] = static_cast<uint16_t>(lane);
            changed[lane / kBlock] |= uint64_t{1} << lane % kBlock;
        }
        size_t before[kTileBlocks];  // changes before each block
        for (size_t b = 0; b < kTileBlocks; b++) {
            before[b] = placed;
            placed += count_bits(changed[b]);
        }
        for (size_t i = 0; i < found.count; i++) {
            size_t lane = lanes[i], block = lane / kBlock;
            size_t to = before[block] + count_bits(changed[block] & ((uint64_t{1} << lane % kBlock) - 1));
            output_.positions[to] = static_cast<uint32_t>(first + lane);
            store<T>(output_.values, to, apply(load<T>(job_.base, first + lane), found.differences[i]));
        }
    }

    // The lane of a tile that has `rank` in class `c`; the tile must hold it.
    static size_t find_lane(const Tile& tile, unsigned c, uint32_t rank) {
        const uint32_t* ranks = tile.ranks[0];
        const uint64_t* members = tile.members[0];
        size_t at = c;  // of block and class; the last block that begins at or before `rank` is wanted
#pragma GCC unroll 8
        for (size_t step = kTileBlocks / 2 * kMaxClasses; step >= kMaxClasses; step /= 2) {
            size_t later = at + step;
            at = ranks[later] <= rank ? later : at;
        }
        return at / kMaxClasses * kBlock + select_bit(members[at], rank - ranks[at]);
    }

    const DecodeJob& job_;
    Output& output_;
    Header header_;
    uint32_t* ranks_ = nullptr;     // class after class, each ended by UINT32_MAX
    T* differences_ = nullptr;      // class after class
    // The changes of each class that are not placed yet; kTake of them may be read at any time.
    const uint32_t* ranks_of_[kMaxClasses] = {};
    const T* differences_of_[kMaxClasses] = {};
};

}  // namespace weightsync::WS_LEVEL
