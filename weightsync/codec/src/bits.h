// Bit strings, least significant bit first. Part of every level: see level.h.
#include "limits.h"

namespace weightsync::WS_LEVEL {

inline unsigned count_bits(uint64_t x) { return static_cast<unsigned>(__builtin_popcountll(x)); }
inline unsigned lowest_bit(uint64_t x) { return static_cast<unsigned>(__builtin_ctzll(x)); }
inline unsigned significant_bits(uint64_t x) { return x ? 64 - static_cast<unsigned>(__builtin_clzll(x)) : 0; }
inline uint64_t low_mask(unsigned bits) { return bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1; }

// Place of the set bit of `mask` that has `rank` set bits below it.
inline unsigned select_bit(uint64_t mask, unsigned rank) {
#if defined(__BMI2__)
    return lowest_bit(_pdep_u64(uint64_t{1} << rank, mask));
#else
    while (rank--) mask &= mask - 1;
    return lowest_bit(mask);
#endif
}

// Appends bits to memory that must reach 16 bytes beyond what is written.
class BitWriter {
  public:
    explicit BitWriter(uint8_t* out) : out_(out) {}

    // `count` <= 56; the bits of `value` above them are zero.
    void put(uint64_t value, unsigned count) {
        pending_ |= value << filled_;
        filled_ += count;
        std::memcpy(out_, &pending_, 8);
        out_ += filled_ >> 3;
        pending_ >>= filled_ & ~7u;
        filled_ &= 7;
    }

    void put_wide(uint64_t value, unsigned count) {
        unsigned low = count < 32 ? count : 32;
        put(value & low_mask(low), low);
        if (count > 32) put(value >> 32, count - 32);
    }

    void put_unary(uint64_t quotient) {
        for (; quotient >= 56; quotient -= 56) put(0, 56);
        if (quotient == 55) return put(0, 55), put(1, 1);
        put(uint64_t{1} << quotient, static_cast<unsigned>(quotient) + 1);
    }

    // Fills up the last byte; returns the end.
    uint8_t* finish() {
        if (filled_) *out_++ = static_cast<uint8_t>(pending_);
        return out_;
    }

  private:
    uint8_t* out_;
    uint64_t pending_ = 0;
    unsigned filled_ = 0;  // bits in pending_, below 8 between calls
};

// Reads bits from memory that is followed by at least 16 zero bytes. Never moves beyond `end`.
struct BitReader {
    const uint8_t* data;
    uint64_t at, end;  // in bits

    // Up to 57 bits at `place`.
    uint64_t peek(uint64_t place) const { return load<uint64_t>(data + (place >> 3), 0) >> (place & 7); }

    uint64_t fixed(uint64_t place, unsigned count) const {
        if (count <= 56) return peek(place) & low_mask(count);
        return (peek(place) & low_mask(32)) | (peek(place + 32) & low_mask(count - 32)) << 32;
    }

    // Skips `count` codes of `width` bits; returns where they start, or sets `failed`.
    uint64_t take(uint64_t count, unsigned width, bool& failed) {
        uint64_t start = at;
        if (count * width > end - at) failed = true;
        else at += count * width;
        return start;
    }

    // Calls use(i, quotient) for each of `count` unary codes. False when the data ends inside them.
    template <class Use>
    bool unary(uint64_t count, Use use) {
        if (count == 0) return true;
        uint64_t previous = at, word_at = at & ~uint64_t{63};
        uint64_t word = load<uint64_t>(data + (word_at >> 3), 0) & ~low_mask(at & 63);
        for (uint64_t i = 0;;) {
            for (; word != 0; word &= word - 1) {
                uint64_t place = word_at + lowest_bit(word);
                use(i, place - previous);
                previous = place + 1;
                if (++i == count) {
                    at = previous;
                    return at <= end;
                }
            }
            word_at += 64;
            if (word_at >= end) return false;
            word = load<uint64_t>(data + (word_at >> 3), 0);
        }
    }

    // Whether only the zero padding of the last byte is left.
    bool finished() const { return end - at < 8 && (peek(at) & low_mask(static_cast<unsigned>(end - at))) == 0; }
};

}  // namespace weightsync::WS_LEVEL
