// Class-gap frames, written. Part of every level: see level.h.
//
//     find_changes     both chunks, once: positions and values of the changed lanes
//     sort_by_class    the old chunk, once more, tile by tile: ranks of the changes within their classes, hence gaps
//     plan             per class: parameters, magnitudes, expected bits
//     write            header and bits
#include "sums.h"

namespace weightsync::WS_LEVEL {

// The changes in the order of the frame: class after class.
template <class T>
struct Sorted {
    uint32_t* gaps;
    T* differences;
    uint32_t start[kMaxClasses + 1];  // of each class
    uint64_t gap_total[kMaxClasses];  // sum of its gaps
};

// Magnitudes above one, class after class: their places in the class as gaps, and the values less two.
template <class T>
struct Exceptions {
    uint32_t* gaps;
    T* excess;
    uint32_t start[kMaxClasses + 1];
};

template <class T>
class Encoder {
  public:
    explicit Encoder(const EncodeJob& job) : job_(job), limit_(change_limit(job.lanes, sizeof(T), job.classes)) {}

    EncodeResult run() {
        EncodeResult result;
        found_.positions = scratch<uint32_t>(Slot::Positions, limit_ + kSlack);
        found_.before = scratch<T>(Slot::Old, limit_ + kSlack);
        found_.after = scratch<T>(Slot::New, limit_ + kSlack);
        result.dense = !find_changes<T>(job_.old_data, job_.new_data, job_.lanes, limit_, found_);
        if (result.dense || found_.count == 0) return result;
        result.changed = found_.count;
        result.sum_delta = changes_sum<T>(found_.positions, bytes(found_.before), bytes(found_.after), found_.count, job_.first_lane);
        choose_window();
        take_differences();
        sort_by_class();
        uint64_t expected = 0, longest = 0;
        plan(expected, longest);
        result.dense = too_large(expected, nbytes()) || !write(longest, result);
        return result;
    }

  private:
    static const uint8_t* bytes(const T* values) { return reinterpret_cast<const uint8_t*>(values); }
    uint64_t nbytes() const { return job_.lanes * sizeof(T); }

    void choose_window() {
        const Spec& spec = job_.spec;
        unsigned mask = (1u << spec.exponent_bits) - 1;
        window_ = {spec.exponent_shift, mask, 0, class_count(found_.count, job_.lanes, spec, job_.classes)};
        header_.classes = window_.classes;
        if (window_.classes == 1) return;
        const uint32_t* histogram = count_exponents(mask);
        header_.first_exponent = window_.first = first_exponent(histogram, mask + 1, window_.classes);
        for (unsigned e = 0; e <= mask; e++) header_.of[window_.of_exponent(e)].changed += histogram[e];
    }

    // Of the changed lanes. Two histograms take turns, since neighbours often share a bin.
    const uint32_t* count_exponents(unsigned mask) {
        uint32_t* histogram = scratch<uint32_t>(Slot::Histogram, 2 * (mask + 1));
        std::memset(histogram, 0, 2 * (mask + 1) * sizeof *histogram);
        unsigned shift = job_.spec.exponent_shift;
        for (size_t i = 0; i < found_.count; i++) histogram[(static_cast<unsigned>(found_.before[i] >> shift) & mask) * 2 + i % 2]++;
        for (unsigned e = 0; e <= mask; e++) histogram[e] = histogram[2 * e] + histogram[2 * e + 1];
        return histogram;
    }

    // Of keys, in the place of the new values.
    void take_differences() {
        bool is_float = job_.spec.is_float;
        for (size_t i = 0; i < found_.count; i++)
            found_.after[i] = static_cast<T>(key(found_.after[i], is_float) - key(found_.before[i], is_float));
    }

    void sort_by_class() {
        sorted_.gaps = scratch<uint32_t>(Slot::Gaps, found_.count);
        sorted_.differences = scratch<T>(Slot::Differences, found_.count + kBlock);
        if (window_.classes == 1) return keep_order();
        uint8_t* classes = scratch<uint8_t>(Slot::Classes, found_.count);
        for (size_t i = 0; i < found_.count; i++) classes[i] = static_cast<uint8_t>(window_.of(found_.before[i]));
        for (unsigned c = 0; c < window_.classes; c++) sorted_.start[c + 1] = sorted_.start[c] + header_.of[c].changed;
        rank(classes);
    }

    void keep_order() {
        uint32_t after = 0;
        for (size_t i = 0; i < found_.count; i++) {
            sorted_.gaps[i] = found_.positions[i] - after;
            after = found_.positions[i] + 1;
        }
        std::memcpy(sorted_.differences, found_.after, found_.count * sizeof(T));
        header_.of[0].changed = sorted_.start[1] = static_cast<uint32_t>(found_.count);
        sorted_.gap_total[0] = after - found_.count;
    }

    void rank(const uint8_t* classes) {
        Tile tile;
        Scanner<T> scanner(window_);
        uint32_t carry[kMaxClasses] = {};
        // Per class, in one word: where its next change goes (high half), and its first rank that is not passed yet.
        uint64_t state[kMaxClasses];
        for (unsigned c = 0; c < kMaxClasses; c++) state[c] = uint64_t{sorted_.start[c]} << 32;
        found_.positions[found_.count] = UINT32_MAX;
        size_t i = 0;
        for (size_t first = 0; i < found_.count; first += kTile) {
            size_t lanes = job_.lanes - first < kTile ? job_.lanes - first : kTile;
            scan_tile(scanner, job_.old_data + first * sizeof(T), lanes, tile, carry);
            for (; found_.positions[i] < first + lanes; i++) {
                unsigned c = classes[i];
                size_t place = found_.positions[i] - first, block = place / kBlock;
                uint64_t at = tile.ranks[block][c] + count_bits(tile.members[block][c] & ((uint64_t{1} << place % kBlock) - 1));
                uint64_t now = state[c], to = now >> 32;
                state[c] = (now - (now & UINT32_MAX)) + (uint64_t{1} << 32) + at + 1;
                sorted_.gaps[to] = static_cast<uint32_t>(at - now);
                sorted_.differences[to] = found_.after[i];
            }
        }
        for (unsigned c = 0; c < window_.classes; c++) sorted_.gap_total[c] = (state[c] & UINT32_MAX) - header_.of[c].changed;
    }

    // Chooses the parameters of every class. `expected`: bits by the estimate that all implementations share; `longest`: bits at most.
    void plan(uint64_t& expected, uint64_t& longest) {
        exceptions_.gaps = scratch<uint32_t>(Slot::Exceptions, found_.count);
        exceptions_.excess = scratch<T>(Slot::Excess, found_.count);
        exceptions_.start[0] = 0;
        for (unsigned c = 0; c < window_.classes; c++) {
            ClassHeader& header = header_.of[c];
            uint64_t count = header.changed;
            exceptions_.start[c + 1] = exceptions_.start[c];
            if (count) {
                uint64_t bits = plan_places(c, header) + count;
                expected += bits + plan_magnitudes(c, header);
                longest += bits + longest_magnitudes(header);
            }
            expected += 8 * class_header_bytes(header);
        }
    }

    // Chooses whether the changed members are listed or the unchanged ones; returns the bits that takes at most.
    uint64_t plan_places(unsigned c, ClassHeader& header) {
        uint64_t count = header.changed, unchanged = sorted_.gap_total[c];
        unsigned k = gap_parameter(unchanged, count);
        uint64_t bits = gap_bits(unchanged, count, k);
        header.k = static_cast<uint8_t>(k);
        if (unchanged >= count) return bits;
        const uint32_t* gaps = sorted_.gaps + sorted_.start[c];
        uint64_t before_last = unchanged ? count - 1 : 0;  // changed members before the last unchanged one
        while (before_last && gaps[before_last] == 0) before_last--;
        k = gap_parameter(before_last, unchanged);
        uint64_t inverted_bits = gap_bits(before_last, unchanged, k);
        if (inverted_bits + 8 * varint_bytes(static_cast<uint32_t>(unchanged)) >= bits) return bits;
        header.inverted = true;
        header.unchanged = static_cast<uint32_t>(unchanged);
        header.k = static_cast<uint8_t>(k);
        return inverted_bits;
    }

    static uint64_t longest_magnitudes(const ClassHeader& header) {
        uint64_t each = header.k_magnitudes + 1 + kUnaryLimit + 8 * sizeof(T);
        if (header.mode == kAllOne) return 0;
        return header.mode == kDirect ? each * header.changed : (each + header.k_exceptions + 1) * header.exceptions + header.changed;
    }

    uint64_t plan_magnitudes(unsigned c, ClassHeader& header) {
        const T* differences = sorted_.differences + sorted_.start[c];
        uint32_t *gaps = exceptions_.gaps + exceptions_.start[c], last = 0;
        T* excess = exceptions_.excess + exceptions_.start[c];
        uint32_t found = 0;
        for (uint32_t i = 0; i < header.changed; i += kBlock) {
            for (uint64_t large = large_ones(differences + i, header.changed - i); large != 0; large &= large - 1) {
                uint32_t at = i + lowest_bit(large);
                gaps[found] = at - last;
                excess[found++] = static_cast<T>(magnitude(differences[at]) - 2);
                last = at + 1;
            }
        }
        if (found == 0) return 0;
        exceptions_.start[c + 1] = exceptions_.start[c] + found;
        return choose_mode(header, excess, found, last - found);
    }

    uint64_t choose_mode(ClassHeader& header, const T* excess, uint32_t found, uint64_t gap_total) {
        Lengths listed, direct;
        for (uint32_t i = 0; i < found; i++) {
            listed.add(excess[i]);
            direct.add(uint64_t{excess[i]} + 1);
        }
        direct.of[0] = header.changed - found;
        unsigned k_gaps = gap_parameter(gap_total, found), width = 8 * sizeof(T);
        Choice list = magnitude_parameter(listed, found, width), all = magnitude_parameter(direct, header.changed, width);
        list.bits += gap_bits(gap_total, found, k_gaps);
        if (list.bits + 16 > all.bits) {
            header.mode = kDirect;
            header.k_magnitudes = static_cast<uint8_t>(all.k);
            return all.bits;
        }
        header.mode = kExceptions;
        header.exceptions = found;
        header.k_exceptions = static_cast<uint8_t>(k_gaps);
        header.k_magnitudes = static_cast<uint8_t>(list.k);
        return list.bits;
    }

    // Bit i: whether difference i of up to 64 exceeds one in magnitude. Up to kBlock more are read.
    static uint64_t large_ones(const T* differences, size_t count) {
        alignas(64) uint8_t flags[kBlock];
        for (size_t i = 0; i < kBlock; i++) flags[i] = static_cast<T>(differences[i] + 1) > 2;
        return nonzero_bytes(flags) & low_mask(count < kBlock ? static_cast<unsigned>(count) : kBlock);
    }

    static T magnitude(T difference) {
        return difference >> (8 * sizeof(T) - 1) ? static_cast<T>(T{0} - difference) : difference;
    }

    // False when the frame would be longer than the chunk.
    bool write(uint64_t longest, EncodeResult& result) {
        uint8_t* frame = scratch<uint8_t>(Slot::Frame, kLongestHeader + longest / 8 + 32);
        BitWriter out(put_header(frame, header_));
        for (unsigned c = 0; c < window_.classes; c++) write_class(out, c);
        result.frame = frame;
        result.frame_bytes = static_cast<size_t>(out.finish() - frame);
        return result.frame_bytes <= nbytes();
    }

    void write_class(BitWriter& out, unsigned c) {
        const ClassHeader& header = header_.of[c];
        T* differences = sorted_.differences + sorted_.start[c];
        if (header.inverted) put_inverted(out, sorted_.gaps + sorted_.start[c], header);
        else put_gaps(out, sorted_.gaps + sorted_.start[c], header.changed, header.k);
        put_signs(out, differences, header.changed);
        unsigned width = 8 * sizeof(T);
        if (header.mode == kExceptions) {
            put_gaps(out, exceptions_.gaps + exceptions_.start[c], header.exceptions, header.k_exceptions);
            put_magnitudes(out, exceptions_.excess + exceptions_.start[c], header.exceptions, header.k_magnitudes, width);
        } else if (header.mode == kDirect) {
            for (uint32_t i = 0; i < header.changed; i++) differences[i] = static_cast<T>(magnitude(differences[i]) - 1);
            put_magnitudes(out, differences, header.changed, header.k_magnitudes, width);
        }
    }

    static void put_inverted(BitWriter& out, const uint32_t* gaps, const ClassHeader& header) {
        uint32_t* runs = scratch<uint32_t>(Slot::Ranks, header.unchanged);
        uint32_t listed = 0, run = 0;
        for (uint32_t i = 0; i < header.changed; i++, run++)
            for (uint32_t j = 0; j < gaps[i]; j++, run = 0) runs[listed++] = run;
        put_gaps(out, runs, header.unchanged, header.k);
    }

    static void put_signs(BitWriter& out, const T* differences, size_t count) {
        for (size_t i = 0; i < count; i += kBlock) {
            alignas(64) uint8_t flags[kBlock];
            for (size_t j = 0; j < kBlock; j++) flags[j] = differences[i + j] >> (8 * sizeof(T) - 1) != 0;
            unsigned group = count - i < kBlock ? static_cast<unsigned>(count - i) : kBlock;
            out.put_wide(nonzero_bytes(flags) & low_mask(group), group);
        }
    }

    const EncodeJob& job_;
    size_t limit_;  // changes
    ChangedLanes<T> found_{};
    Window window_{};
    Header header_;
    Sorted<T> sorted_{};
    Exceptions<T> exceptions_{};
};

}  // namespace weightsync::WS_LEVEL
