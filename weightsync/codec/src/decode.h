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
        ranks_ = scratch<uint32_t>(Slot::Ranks, header_.changed + kMaxClasses);
        differences_ = scratch<T>(Slot::Differences, header_.changed);
        uint32_t* ranks = ranks_;
        T* differences = differences_;
        for (unsigned c = 0; c < header_.classes; c++) {
            const ClassHeader& one = header_.of[c];
            next_[c] = ranks;
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
        for (uint32_t i = 0; i < c.changed; i += 32) {
            uint64_t word = in.peek(signs + i);
            uint32_t group = c.changed - i < 32 ? c.changed - i : 32;
            for (uint32_t j = 0; j < group; j++) out[i + j] = static_cast<T>(1 - 2 * (word >> j & 1));
        }
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

    // Walks through the base, merging the classes. False when the base ends before the changes do.
    bool place() {
        Tile tile;
        unsigned mask = (1u << job_.spec.exponent_bits) - 1;
        Scanner<T> scanner({job_.spec.exponent_shift, mask, header_.first_exponent, header_.classes});
        uint32_t carry[kMaxClasses] = {};
        Merge merge(*this);
        for (size_t first = 0; first < job_.lanes && merge.placed < header_.changed; first += kTile) {
            size_t lanes = job_.lanes - first < kTile ? job_.lanes - first : kTile;
            scan_tile(scanner, job_.base + first * sizeof(T), lanes, tile, carry);
            for (size_t b = 0; b * kBlock < lanes; b++)
                if (uint32_t due = merge.due(tile.ranks[b + 1])) merge.block(due, tile, b, first + b * kBlock);
        }
        return merge.placed == header_.changed;
    }

    // The next rank of each class, and what has been placed so far.
    class Merge {
      public:
        size_t placed = 0;

        explicit Merge(Decoder& decoder) : decoder_(decoder) {
            const T* differences = decoder.differences_;
            for (unsigned c = 0; c < kMaxClasses; c++) {
                bool used = c < decoder.header_.classes;
                ranks_[c] = used ? decoder.next_[c] : nullptr;
                set_target(c, used ? *ranks_[c] : UINT32_MAX);
                differences_[c] = differences;
                if (used) differences += decoder.header_.of[c].changed;
            }
        }

        // Classes that have a change before the ranks `end`.
        uint32_t due(const uint32_t* end) const {
#if defined(WS_AVX512)
            return _mm512_cmplt_epu32_mask(targets_, _mm512_load_si512(end));
#else
            uint32_t mask = 0;
            for (unsigned c = 0; c < kMaxClasses; c++) mask |= uint32_t{targets_[c] < end[c]} << c;
            return mask;
#endif
        }

        void block(uint32_t due, const Tile& tile, size_t b, size_t first) {
            uint64_t changed = 0;
            T differences[kBlock];
            for (; due != 0; due &= due - 1) {
                unsigned c = lowest_bit(due);
                uint32_t rank = *ranks_[c];
                do {
                    unsigned lane = select_bit(tile.members[b][c], rank - tile.ranks[b][c]);
                    differences[lane] = *differences_[c]++;
                    changed |= uint64_t{1} << lane;
                    rank = *++ranks_[c];
                } while (rank < tile.ranks[b + 1][c]);
                set_target(c, rank);
            }
            for (; changed != 0; changed &= changed - 1) {
                unsigned lane = lowest_bit(changed);
                T value = decoder_.apply(load<T>(decoder_.job_.base, first + lane), differences[lane]);
                decoder_.output_.positions[placed] = static_cast<uint32_t>(first + lane);
                store<T>(decoder_.output_.values, placed++, value);
            }
        }

      private:
#if defined(WS_AVX512)
        // Kept in a register: reading it back after the write of one element would stall.
        void set_target(unsigned c, uint32_t rank) { targets_ = _mm512_mask_set1_epi32(targets_, static_cast<__mmask16>(1u << c), static_cast<int>(rank)); }
        __m512i targets_ = _mm512_set1_epi32(-1);
#else
        void set_target(unsigned c, uint32_t rank) { targets_[c] = rank; }
        alignas(64) uint32_t targets_[kMaxClasses];
#endif
        Decoder& decoder_;
        const uint32_t* ranks_[kMaxClasses];
        const T* differences_[kMaxClasses];
    };

    const DecodeJob& job_;
    Output& output_;
    Header header_;
    uint32_t* ranks_ = nullptr;     // class after class, each ended by UINT32_MAX
    T* differences_ = nullptr;      // class after class
    const uint32_t* next_[kMaxClasses] = {};
};

}  // namespace weightsync::WS_LEVEL
