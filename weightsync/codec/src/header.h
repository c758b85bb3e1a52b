// The header of class-gap frames. Part of every level: see level.h.
#include "bits.h"

namespace weightsync::WS_LEVEL {

enum Mode : uint8_t { kAllOne = 0, kExceptions = 1, kDirect = 2 };

// One class. `mode` says how magnitudes are coded, and which of the last three fields are there.
struct ClassHeader {
    uint32_t changed = 0;
    uint8_t k = 0, mode = kAllOne;
    bool inverted = false;   // the members that did not change are listed, up to the last that did
    uint32_t unchanged = 0;  // how many those are
    uint32_t exceptions = 0;
    uint8_t k_exceptions = 0, k_magnitudes = 0;
};

struct Header {
    unsigned classes = 1, first_exponent = 0;
    uint64_t changed = 0;  // in all classes
    ClassHeader of[kMaxClasses];
};

constexpr size_t kLongestHeader = 2 + 5 + kMaxClasses * 18;  // bytes

inline size_t varint_bytes(uint32_t value) { return value < 1u << 7 ? 1 : value < 1u << 14 ? 2 : value < 1u << 21 ? 3 : value < 1u << 28 ? 4 : 5; }

inline uint8_t* put_varint(uint8_t* out, uint32_t value) {
    for (; value >= 0x80; value >>= 7) *out++ = static_cast<uint8_t>(value | 0x80);
    *out++ = static_cast<uint8_t>(value);
    return out;
}

inline size_t class_header_bytes(const ClassHeader& c) {
    if (c.changed == 0) return 1;
    size_t places = varint_bytes(c.changed) + 1 + (c.inverted ? varint_bytes(c.unchanged) : 0);
    return places + (c.mode == kExceptions ? varint_bytes(c.exceptions) + 2 : c.mode == kDirect ? 1 : 0);
}

inline uint8_t* put_header(uint8_t* out, const Header& header) {
    *out++ = kClassGapId;
    *out++ = static_cast<uint8_t>(header.classes - 1);
    if (header.classes > 1) out = put_varint(out, header.first_exponent);
    for (unsigned c = 0; c < header.classes; c++) {
        const ClassHeader& one = header.of[c];
        out = put_varint(out, one.changed);
        if (one.changed == 0) continue;
        *out++ = static_cast<uint8_t>(one.k | one.mode << 5 | one.inverted << 7);
        if (one.inverted) out = put_varint(out, one.unchanged);
        if (one.mode == kExceptions) {
            out = put_varint(out, one.exceptions);
            *out++ = one.k_exceptions;
        }
        if (one.mode != kAllOne) *out++ = one.k_magnitudes;
    }
    return out;
}

// Reads header fields; after the first failure everything reads as 0.
struct ByteReader {
    const uint8_t *at, *end;
    const char* error = nullptr;

    unsigned byte() {
        if (at < end) return *at++;
        fail("the frame ends inside its header");
        return 0;
    }

    uint32_t varint() {
        uint64_t value = 0;
        for (unsigned place = 0; place < 5; place++) {
            uint64_t next = byte();
            value |= (next & 0x7f) << (7 * place);
            if (next >= 0x80) continue;
            if (place && next == 0) fail("a varint is longer than it need be");
            if (value >> 32) fail("a varint exceeds 32 bits");
            return static_cast<uint32_t>(value);
        }
        fail("a varint does not end");
        return 0;
    }

    void fail(const char* why) {
        if (error == nullptr) error = why;
        at = end;
    }
};

inline void get_class(ByteReader& in, ClassHeader& c, unsigned width, size_t lanes) {
    c.changed = in.varint();
    if (c.changed == 0) return;
    if (c.changed > lanes) return in.fail("the number of changes does not fit the chunk");
    unsigned byte = in.byte();
    c.k = byte & 31;
    c.mode = byte >> 5 & 3;
    c.inverted = byte >= 128;
    if (c.inverted) c.unchanged = in.varint();
    if (uint64_t{c.changed} + c.unchanged > lanes) return in.fail("the number of changes does not fit the chunk");
    if (c.mode == kExceptions) {
        c.exceptions = in.varint();
        if (c.exceptions == 0 || c.exceptions > c.changed) return in.fail("the number of exceptions does not fit the class");
        c.k_exceptions = static_cast<uint8_t>(in.byte());
    }
    if (c.mode == kExceptions || c.mode == kDirect) c.k_magnitudes = static_cast<uint8_t>(in.byte());
    if (c.mode > kDirect || c.k > kMaxGapParameter || c.k_exceptions > kMaxGapParameter || c.k_magnitudes >= width ||
        c.k_magnitudes > kMaxMagnitudeParameter)
        in.fail("a class has an unknown mode or a parameter out of range");
}

inline Header get_header(ByteReader& in, const Spec& spec, size_t lanes) {
    Header header;
    if (static_cast<size_t>(in.end - in.at) > frame_limit(lanes * spec.lane_bytes)) in.fail("the frame is longer than any such chunk's");
    else if (in.byte() != kClassGapId) in.fail("this is no class-gap frame");
    header.classes = in.byte() + 1;
    if (header.classes > kMaxClasses || header.classes > 1u << spec.exponent_bits) {
        in.fail("there are more classes than the type has exponents");
        header.classes = 1;
    }
    if (header.classes > 1) header.first_exponent = in.varint();
    if (header.first_exponent > (1u << spec.exponent_bits) - header.classes) in.fail("the classes reach beyond the exponents");
    for (unsigned c = 0; c < header.classes && in.error == nullptr; c++) {
        get_class(in, header.of[c], spec.lane_bytes * 8, lanes);
        header.changed += header.of[c].changed;
    }
    if (header.changed == 0 || header.changed > lanes) in.fail("the number of changes does not fit the chunk");
    return header;
}

}  // namespace weightsync::WS_LEVEL
