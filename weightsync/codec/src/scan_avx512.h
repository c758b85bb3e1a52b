// Passes for AVX-512 with VBMI2, GFNI and VPOPCNTDQ (Ice Lake, Zen 4 and later). Part of a level: see level.h.
//
// Membership of 64 lanes in all classes at once: each lane's class becomes a byte with one bit set (vpshufb), an 8 x 8 bit transposition
// of every eight of them (gf2p8affineqb) and one of bytes (vpermb) make one 64-bit mask per class, whose population counts advance the ranks.

namespace weightsync::WS_LEVEL {

inline __m512i load512(const uint8_t* data) { return _mm512_loadu_si512(data); }

// Fetches the block at `data`, which may lie beyond the end: the hardware stops at every page.
template <class T>
inline void prefetch(const uint8_t* data) {
    for (size_t i = 0; i < sizeof(T); i++) _mm_prefetch(reinterpret_cast<const char*>(data) + 64 * i, _MM_HINT_T0);
}

// Bit i: whether byte i of 64 is not 0.
inline uint64_t nonzero_bytes(const uint8_t* bytes) {
    __m512i all = _mm512_load_si512(bytes);
    return _mm512_test_epi8_mask(all, all);
}

// Writes the lanes of one vector that `mask` selects; returns behind them. The whole vector may be overwritten.
template <class T>
inline T* compress(T* out, uint64_t mask, __m512i lanes) {
    __m512i packed;
    if constexpr (sizeof(T) == 1) packed = _mm512_maskz_compress_epi8(mask, lanes);
    if constexpr (sizeof(T) == 2) packed = _mm512_maskz_compress_epi16(static_cast<__mmask32>(mask), lanes);
    if constexpr (sizeof(T) == 4) packed = _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), lanes);
    if constexpr (sizeof(T) == 8) packed = _mm512_maskz_compress_epi64(static_cast<__mmask8>(mask), lanes);
    _mm512_storeu_si512(out, packed);
    return out + count_bits(mask);
}

template <class T>
inline uint64_t differing(__m512i a, __m512i b) {
    if constexpr (sizeof(T) == 1) return _mm512_cmpneq_epi8_mask(a, b);
    if constexpr (sizeof(T) == 2) return _mm512_cmpneq_epi16_mask(a, b);
    if constexpr (sizeof(T) == 4) return _mm512_cmpneq_epi32_mask(a, b);
    return _mm512_cmpneq_epi64_mask(a, b);
}

inline __m512i byte_iota() {
    alignas(64) static const uint8_t iota[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                                 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
                                                 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    return _mm512_load_si512(iota);
}

// Writes 32 lanes: -1 for each bit of `negative` that is 1, and 1 for the others.
template <class T>
inline void put_ones(uint32_t negative, T* out) {
    if constexpr (sizeof(T) == 1) _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_or_si256(_mm256_movm_epi8(negative), _mm256_set1_epi8(1)));
    if constexpr (sizeof(T) == 2) _mm512_storeu_si512(out, _mm512_or_si512(_mm512_movm_epi16(negative), _mm512_set1_epi16(1)));
    for (unsigned i = 0; sizeof(T) == 4 && i < 32; i += 16)
        _mm512_storeu_si512(out + i, _mm512_or_si512(_mm512_movm_epi32(static_cast<__mmask16>(negative >> i)), _mm512_set1_epi32(1)));
    for (unsigned i = 0; sizeof(T) == 8 && i < 32; i += 8)
        _mm512_storeu_si512(out + i, _mm512_or_si512(_mm512_movm_epi64(static_cast<__mmask8>(negative >> i)), _mm512_set1_epi64(1)));
}

// Copies the numbers below `end` from kTake ascending ones; returns how many those are. Writes kTake.
inline size_t take_below(const uint32_t* numbers, uint32_t end, uint32_t* out) {
    __m512i some = _mm512_loadu_si512(numbers);
    _mm512_storeu_si512(out, some);
    unsigned below = _mm512_cmplt_epu32_mask(some, _mm512_set1_epi32(static_cast<int>(end)));
    return lowest_bit(~uint64_t{below});  // behind the end of a class come the numbers of the next
}

// Writes `first` + i for each bit i of `mask`; returns how many. Overwrites up to kBlock places.
inline unsigned put_positions(uint64_t mask, uint32_t first, uint32_t* out) {
    __m512i places = _mm512_maskz_compress_epi8(mask, byte_iota()), base = _mm512_set1_epi32(static_cast<int>(first));
    unsigned count = count_bits(mask);
    auto put = [=](unsigned at, __m128i quarter) { _mm512_storeu_si512(out + at, _mm512_add_epi32(base, _mm512_cvtepu8_epi32(quarter))); };
    put(0, _mm512_castsi512_si128(places));
    if (__builtin_expect(count > 16, 0)) {
        put(16, _mm512_extracti32x4_epi32(places, 1));
        put(32, _mm512_extracti32x4_epi32(places, 2));
        put(48, _mm512_extracti32x4_epi32(places, 3));
    }
    return count;
}

// Branch-free: at 1 % changed every second block has a change, which no predictor can know.
template <class T>
inline void find_in_block(const uint8_t* before, const uint8_t* after, uint32_t first, ChangedLanes<T>& found) {
    constexpr unsigned vectors = sizeof(T), lanes = 64 / sizeof(T);
    uint64_t mask = 0;
    T *old_out = found.before + found.count, *new_out = found.after + found.count;
#pragma GCC unroll 8
    for (unsigned v = 0; v < vectors; v++) {
        __m512i a = load512(before + 64 * v), b = load512(after + 64 * v);
        uint64_t here = differing<T>(a, b);
        mask |= here << (v * lanes % 64);
        old_out = compress(old_out, here, a);
        new_out = compress(new_out, here, b);
    }
    found.count += put_positions(mask, first, found.positions + found.count);
}

inline __m512i join128(__m128i a, __m128i b, __m128i c, __m128i d) {
    __m512i low = _mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1));
    return _mm512_inserti64x4(low, _mm256_inserti128_si256(_mm256_castsi128_si256(c), d, 1), 1);
}

// Classes of 64 lanes, one byte each, in the order that `Scanner::in_groups` expects.
template <class T>
class Classifier {
  public:
    explicit Classifier(const Window& window)
        : shift_(_mm_cvtsi32_si128(static_cast<int>(window.shift))), last8_(_mm512_set1_epi8(static_cast<char>(window.classes - 1))) {
        if constexpr (sizeof(T) <= 2) {
            first_ = _mm512_set1_epi8(static_cast<char>(window.first));
            mask_ = sizeof(T) == 1 ? _mm512_set1_epi8(static_cast<char>(window.exponent_mask)) : _mm512_set1_epi16(static_cast<short>(window.exponent_mask));
        } else if constexpr (sizeof(T) == 4) {
            first_ = _mm512_set1_epi32(static_cast<int>(window.first));
            mask_ = _mm512_set1_epi32(static_cast<int>(window.exponent_mask));
        } else {
            first_ = _mm512_set1_epi64(window.first);
            mask_ = _mm512_set1_epi64(window.exponent_mask);
        }
    }

    __m512i operator()(const uint8_t* data) const {
        if constexpr (sizeof(T) == 1) {
            return clamp(_mm512_and_si512(_mm512_srl_epi16(load512(data), shift_), mask_));
        } else if constexpr (sizeof(T) == 2) {
            __m512i a = _mm512_and_si512(_mm512_srl_epi16(load512(data), shift_), mask_);
            __m512i b = _mm512_and_si512(_mm512_srl_epi16(load512(data + 64), shift_), mask_);
            return clamp(_mm512_packus_epi16(a, b));
        } else if constexpr (sizeof(T) == 4) {
            return join128(narrow32(data), narrow32(data + 64), narrow32(data + 128), narrow32(data + 192));
        } else {
            return join128(narrow64(data), narrow64(data + 128), narrow64(data + 256), narrow64(data + 384));
        }
    }

  private:
    __m512i clamp(__m512i exponents) const { return _mm512_min_epu8(_mm512_subs_epu8(exponents, first_), last8_); }

    __m128i narrow32(const uint8_t* data) const {
        __m512i exponents = _mm512_and_si512(_mm512_srl_epi32(load512(data), shift_), mask_);
        __m512i above = _mm512_sub_epi32(_mm512_max_epu32(exponents, first_), first_);
        return _mm_min_epu8(_mm512_cvtusepi32_epi8(above), _mm512_castsi512_si128(last8_));
    }

    __m128i narrow64(const uint8_t* data) const { return _mm_unpacklo_epi64(narrow64_half(data), narrow64_half(data + 64)); }

    __m128i narrow64_half(const uint8_t* data) const {
        __m512i exponents = _mm512_and_si512(_mm512_srl_epi64(load512(data), shift_), mask_);
        __m512i above = _mm512_sub_epi64(_mm512_max_epu64(exponents, first_), first_);
        return _mm_min_epu8(_mm512_cvtusepi64_epi8(above), _mm512_castsi512_si128(last8_));
    }

    __m128i shift_;
    __m512i first_, last8_, mask_;
};

template <class T>
class Scanner {
  public:
    explicit Scanner(const Window& window) : classify_(window) {
        alignas(64) uint8_t groups[64], transpose[64];
        alignas(64) uint32_t even[16];
        for (unsigned i = 0; i < 64; i++) {
            unsigned lane = (i & ~7u) | (7 - (i & 7));  // the bit transposition reverses every eight
            groups[i] = static_cast<uint8_t>(sizeof(T) == 2 ? packed_place(lane) : lane);
            transpose[i] = static_cast<uint8_t>((i & 7) * 8 + i / 8);
        }
        for (unsigned i = 0; i < 16; i++) even[i] = i < 8 ? 2 * i : 16 + 2 * (i - 8);
        groups_ = _mm512_load_si512(groups);
        transpose_ = _mm512_load_si512(transpose);
        even_ = _mm512_load_si512(even);
        low_bits_ = _mm512_broadcast_i32x4(_mm_set_epi64x(0, static_cast<long long>(0x8040201008040201)));
        high_bits_ = _mm512_broadcast_i32x4(_mm_set_epi64x(static_cast<long long>(0x8040201008040201), 0));
        identity_ = _mm512_set1_epi64(static_cast<long long>(0x8040201008040201));
    }

    // Masks and ranks of whole blocks from the start of a tile.
    void whole(const uint8_t* data, size_t blocks, Tile& tile) const {
        __m512i ranks = _mm512_load_si512(tile.ranks[0]);
        for (size_t b = 0; b < blocks; b++) {
            prefetch<T>(data + (b + kTileBlocks) * kBlock * sizeof(T));
            ranks = block(data + b * kBlock * sizeof(T), ranks, tile.members[b], _mm512_set1_epi64(-1));
            _mm512_store_si512(tile.ranks[b + 1], ranks);
        }
    }

    // Those of block `b`, of which only the first `lanes` exist; `data` is readable to its end.
    void partial(const uint8_t* data, size_t lanes, size_t b, Tile& tile) const {
        __m512i valid = _mm512_set1_epi64(static_cast<long long>(low_mask(static_cast<unsigned>(lanes))));
        _mm512_store_si512(tile.ranks[b + 1], block(data, _mm512_load_si512(tile.ranks[b]), tile.members[b], valid));
    }

  private:
    // Stores the masks of one block; returns the ranks behind it.
    __m512i block(const uint8_t* data, __m512i ranks, uint64_t* members, __m512i valid) const {
        __m512i classes = _mm512_permutexvar_epi8(groups_, classify_(data));
        __m512i low = _mm512_and_si512(masks(_mm512_shuffle_epi8(low_bits_, classes)), valid);
        __m512i high = _mm512_and_si512(masks(_mm512_shuffle_epi8(high_bits_, classes)), valid);
        _mm512_store_si512(members, low);
        _mm512_store_si512(members + 8, high);
        return _mm512_add_epi32(ranks, _mm512_permutex2var_epi32(_mm512_popcnt_epi64(low), even_, _mm512_popcnt_epi64(high)));
    }

    // Where `_mm512_packus_epi16` puts the lane: it interleaves its operands by quarters.
    static unsigned packed_place(unsigned lane) { return (lane % 32) / 8 * 16 + lane / 32 * 8 + lane % 8; }

    __m512i masks(__m512i one_bit) const { return _mm512_permutexvar_epi8(transpose_, _mm512_gf2p8affine_epi64_epi8(identity_, one_bit, 0)); }

    Classifier<T> classify_;
    __m512i groups_, transpose_, even_, low_bits_, high_bits_, identity_;
};

}  // namespace weightsync::WS_LEVEL
