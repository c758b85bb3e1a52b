// Passes for processors without AVX-512; with AVX2 the comparisons take 32 lanes' bytes at once. Part of a level: see level.h.

namespace weightsync::WS_LEVEL {

// Bit i: whether byte i of 64 equals `value`.
inline uint64_t equal_bytes(const uint8_t* bytes, uint8_t value) {
#if defined(__AVX2__)
    __m256i wanted = _mm256_set1_epi8(static_cast<char>(value));
    auto half = [&](const uint8_t* at) {
        __m256i found = _mm256_cmpeq_epi8(_mm256_load_si256(reinterpret_cast<const __m256i*>(at)), wanted);
        return static_cast<uint32_t>(_mm256_movemask_epi8(found));
    };
    return half(bytes) | uint64_t{half(bytes + 32)} << 32;
#else
    uint64_t mask = 0;
    for (unsigned i = 0; i < kBlock; i++) mask |= uint64_t{bytes[i] == value} << i;
    return mask;
#endif
}

inline uint64_t nonzero_bytes(const uint8_t* bytes) { return ~equal_bytes(bytes, 0); }

// Writes 32 lanes: -1 for each bit of `negative` that is 1, and 1 for the others.
template <class T>
inline void put_ones(uint32_t negative, T* out) {
    for (unsigned i = 0; i < 32; i++) out[i] = static_cast<T>(T{1} - static_cast<T>(2 * (negative >> i & 1)));
}

// Copies the numbers below `end` from kTake ascending ones; returns how many those are. Writes kTake.
inline size_t take_below(const uint32_t* numbers, uint32_t end, uint32_t* out) {
    size_t count = 0;
    for (size_t i = 0; i < kTake; i++) {
        out[i] = numbers[i];
        count += count == i && numbers[i] < end;
    }
    return count;
}

// Writes `first` + i for each bit i of `mask`; returns how many.
inline unsigned put_positions(uint64_t mask, uint32_t first, uint32_t* out) {
    unsigned count = 0;
    for (; mask != 0; mask &= mask - 1) out[count++] = first + lowest_bit(mask);
    return count;
}

template <class T>
inline void find_in_block(const uint8_t* before, const uint8_t* after, uint32_t first, ChangedLanes<T>& found) {
    if (std::memcmp(before, after, kBlock * sizeof(T)) == 0) return;
    alignas(32) uint8_t same[kBlock];
    for (size_t i = 0; i < kBlock; i++) same[i] = load<T>(before, i) == load<T>(after, i);
    uint64_t mask = equal_bytes(same, 0);
    put_positions(mask, first, found.positions + found.count);
    for (; mask != 0; mask &= mask - 1) {
        unsigned i = lowest_bit(mask);
        found.before[found.count] = load<T>(before, i);
        found.after[found.count++] = load<T>(after, i);
    }
}

template <class T>
class Scanner {
  public:
    explicit Scanner(const Window& window) : window_(window) {}

    // Masks and ranks of whole blocks from the start of a tile.
    void whole(const uint8_t* data, size_t blocks, Tile& tile) const {
        for (size_t b = 0; b < blocks; b++) partial(data + b * kBlock * sizeof(T), kBlock, b, tile);
    }

    // Those of block `b`, of which only the first `lanes` exist; `data` is readable to its end.
    void partial(const uint8_t* data, size_t lanes, size_t b, Tile& tile) const {
        alignas(32) uint8_t classes[kBlock];
        for (size_t i = 0; i < kBlock; i++) classes[i] = static_cast<uint8_t>(window_.of(load<T>(data, i)));
        uint64_t* members = tile.members[b];
        fill(members, classes, low_mask(static_cast<unsigned>(lanes)));
        for (unsigned c = 0; c < kMaxClasses; c++) tile.ranks[b + 1][c] = tile.ranks[b][c] + count_bits(members[c]);
    }

  private:
    void fill(uint64_t* members, const uint8_t* classes, uint64_t valid) const {
#if defined(__AVX2__)
        for (unsigned c = 0; c < kMaxClasses; c++) members[c] = c < window_.classes ? equal_bytes(classes, static_cast<uint8_t>(c)) & valid : 0;
#else
        std::memset(members, 0, kMaxClasses * sizeof *members);
        for (size_t i = 0; i < kBlock; i++) members[classes[i]] |= (valid >> i & 1) << i;
#endif
    }

    Window window_;
};

}  // namespace weightsync::WS_LEVEL
