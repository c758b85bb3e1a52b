// Byte and nibble planes, zigzag key differences, and access by position. Part of every level: see level.h.
#include "decode.h"

namespace weightsync::WS_LEVEL {

template <class T>
T zigzag(T difference) {
    return static_cast<T>(static_cast<T>(difference << 1) ^ static_cast<T>(T{0} - static_cast<T>(difference >> (8 * sizeof(T) - 1))));
}

template <class T>
T unzigzag(T value) {
    return static_cast<T>(static_cast<T>(value >> 1) ^ static_cast<T>(T{0} - static_cast<T>(value & 1)));
}

// Planes are written and read a stretch at a time, so that lanes stay in the first-level cache for each plane's pass.
constexpr size_t kStretch = 1024;  // lanes

template <class Use>
void for_each_stretch(size_t lanes, Use use) {
    for (size_t first = 0; first < lanes; first += kStretch) use(first, lanes - first < kStretch ? lanes - first : kStretch);
}

// A snapshot's planes: planes[p * lanes + i] = byte p of lane i.
template <class T>
void split_planes(const uint8_t* data, size_t lanes, uint8_t* planes) {
    for_each_stretch(lanes, [=](size_t first, size_t count) {
        for (size_t p = 0; p < sizeof(T); p++)
            for (size_t i = 0; i < count; i++) planes[p * lanes + first + i] = static_cast<uint8_t>(load<T>(data, first + i) >> (8 * p));
    });
}

template <class T>
void join_planes(const uint8_t* planes, size_t lanes, uint8_t* out) {
    for_each_stretch(lanes, [=](size_t first, size_t count) {
        T values[kStretch] = {};
        for (size_t p = 0; p < sizeof(T); p++)
            for (size_t i = 0; i < count; i++) values[i] = static_cast<T>(values[i] | static_cast<T>(T{planes[p * lanes + first + i]} << (8 * p)));
        std::memcpy(out + first * sizeof(T), values, count * sizeof(T));
    });
}

// Differences go into planes of nibbles, two lanes to a byte: bytes that are nearly all 0 and +-1 would make zstd look for matches.
// Byte j of plane p = nibble p of lane 2 j, and 16 times that of lane 2 j + 1; `values` reaches to an even count.
template <class T>
void put_nibbles(const T* values, size_t count, uint8_t* planes, size_t plane_bytes) {
    for (unsigned p = 0; p < 2 * sizeof(T); p++)
        for (size_t j = 0; j < (count + 1) / 2; j++)
            planes[p * plane_bytes + j] = static_cast<uint8_t>((values[2 * j] >> (4 * p) & 15) | (values[2 * j + 1] >> (4 * p) & 15) << 4);
}

template <class T>
void get_nibbles(const uint8_t* planes, size_t plane_bytes, size_t count, T* values) {
    std::memset(values, 0, kStretch * sizeof(T));
    for (unsigned p = 0; p < 2 * sizeof(T); p++)
        for (size_t j = 0; j < (count + 1) / 2; j++) {
            uint8_t pair = planes[p * plane_bytes + j];
            values[2 * j] = static_cast<T>(values[2 * j] | static_cast<T>(static_cast<T>(pair & 15) << (4 * p)));
            values[2 * j + 1] = static_cast<T>(values[2 * j + 1] | static_cast<T>(static_cast<T>(pair >> 4) << (4 * p)));
        }
}

template <class T>
Totals difference_planes(const EncodeJob& job, uint8_t* planes) {
    Totals totals{0, 0};
    bool is_float = job.spec.is_float;
    for_each_stretch(job.lanes, [&, is_float](size_t first, size_t count) {
        T values[kStretch];
        const uint8_t *before = job.old_data + first * sizeof(T), *after = job.new_data + first * sizeof(T);
        uint32_t changed = 0;
        uint64_t sum = 0, place = job.first_lane + first;
        for (size_t i = 0; i < count; i++)
            values[i] = zigzag(static_cast<T>(key(load<T>(after, i), is_float) - key(load<T>(before, i), is_float)));
        if (count % 2) values[count] = 0;
        for (size_t i = 0; i < count; i++) changed += values[i] != 0;
        for (size_t i = 0; i < count; i++) sum += (uint64_t{load<T>(after, i)} - load<T>(before, i)) * weight(place + i);
        put_nibbles(values, count, planes + first / 2, (job.lanes + 1) / 2);
        totals.changed += changed;
        totals.sum_delta += sum;
    });
    return totals;
}

template <class T>
void apply_difference_planes(const Spec& spec, const uint8_t* planes, const uint8_t* base, size_t lanes, uint8_t* out) {
    for_each_stretch(lanes, [=, is_float = spec.is_float](size_t first, size_t count) {
        T values[kStretch];
        get_nibbles(planes + first / 2, (lanes + 1) / 2, count, values);
        for (size_t i = 0; i < count; i++)
            values[i] = key(static_cast<T>(key(load<T>(base, first + i), is_float) + unzigzag(values[i])), is_float);
        std::memcpy(out + first * sizeof(T), values, count * sizeof(T));
    });
}

template <class T>
void differences_of_planes(const uint8_t* planes, size_t lanes, uint8_t* out) {
    for_each_stretch(lanes, [=](size_t first, size_t count) {
        T values[kStretch];
        get_nibbles(planes + first / 2, (lanes + 1) / 2, count, values);
        for (size_t i = 0; i < count; i++) values[i] = unzigzag(values[i]);
        std::memcpy(out + first * sizeof(T), values, count * sizeof(T));
    });
}

inline bool within(const uint32_t* positions, size_t count, size_t lanes) {
    uint32_t highest = 0;
    for (size_t i = 0; i < count; i++) highest = positions[i] > highest ? positions[i] : highest;
    return count == 0 || highest < lanes;
}

// False, with nothing done, when a position lies beyond the end.
template <class T>
bool gather(const uint8_t* data, size_t lanes, const uint32_t* positions, size_t count, uint8_t* out) {
    if (!within(positions, count, lanes)) return false;
    for (size_t i = 0; i < count; i++) store<T>(out, i, load<T>(data, positions[i]));
    return true;
}

template <class T>
bool scatter(uint8_t* data, size_t lanes, const uint32_t* positions, size_t count, const uint8_t* values) {
    if (!within(positions, count, lanes)) return false;
    for (size_t i = 0; i < count; i++) store<T>(data, positions[i], load<T>(values, i));
    return true;
}

}  // namespace weightsync::WS_LEVEL
