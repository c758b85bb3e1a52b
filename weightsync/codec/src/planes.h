// Byte planes, zigzag key differences, and access by position. Part of every level: see level.h.
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

// Planes are written and read a stretch at a time, so that they are in the first-level cache for each byte's pass.
constexpr size_t kStretch = 1024;  // lanes

// planes[p * lanes + i] = byte p of make(i)
template <class T, class Make>
void write_planes(uint8_t* planes, size_t lanes, Make make) {
    T values[kStretch];
    for (size_t first = 0; first < lanes; first += kStretch) {
        size_t count = lanes - first < kStretch ? lanes - first : kStretch;
        for (size_t i = 0; i < count; i++) values[i] = make(first + i);
        for (size_t p = 0; p < sizeof(T); p++)
            for (size_t i = 0; i < count; i++) planes[p * lanes + first + i] = static_cast<uint8_t>(values[i] >> (8 * p));
    }
}

// take(i, lane i)
template <class T, class Take>
void read_planes(const uint8_t* planes, size_t lanes, Take take) {
    T values[kStretch];
    for (size_t first = 0; first < lanes; first += kStretch) {
        size_t count = lanes - first < kStretch ? lanes - first : kStretch;
        for (size_t i = 0; i < count; i++) values[i] = planes[first + i];
        for (size_t p = 1; p < sizeof(T); p++)
            for (size_t i = 0; i < count; i++) values[i] = static_cast<T>(values[i] | static_cast<T>(T{planes[p * lanes + first + i]} << (8 * p)));
        for (size_t i = 0; i < count; i++) take(first + i, values[i]);
    }
}

template <class T>
Totals difference_planes(const EncodeJob& job, uint8_t* planes) {
    Totals totals{0, 0};
    bool is_float = job.spec.is_float;
    write_planes<T>(planes, job.lanes, [&](size_t i) {
        T before = load<T>(job.old_data, i), after = load<T>(job.new_data, i);
        totals.changed += before != after;
        totals.sum_delta += (uint64_t{after} - before) * weight(job.first_lane + i);
        return zigzag(static_cast<T>(key(after, is_float) - key(before, is_float)));
    });
    return totals;
}

template <class T>
void apply_difference_planes(const Spec& spec, const uint8_t* planes, const uint8_t* base, size_t lanes, uint8_t* out) {
    bool is_float = spec.is_float;
    read_planes<T>(planes, lanes, [&](size_t i, T value) {
        store<T>(out, i, key(static_cast<T>(key(load<T>(base, i), is_float) + unzigzag(value)), is_float));
    });
}

template <class T>
void differences_of_planes(const uint8_t* planes, size_t lanes, uint8_t* out) {
    read_planes<T>(planes, lanes, [&](size_t i, T value) { store<T>(out, i, unzigzag(value)); });
}

template <class T>
void split_planes(const uint8_t* data, size_t lanes, uint8_t* planes) {
    write_planes<T>(planes, lanes, [&](size_t i) { return load<T>(data, i); });
}

template <class T>
void join_planes(const uint8_t* planes, size_t lanes, uint8_t* out) {
    read_planes<T>(planes, lanes, [&](size_t i, T value) { store<T>(out, i, value); });
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
