// Vectors of eight-bit numbers in the cache: a number times a factor is what was cached, rounded.
//
// Of each block a head has its rows of keys, then those of values. A factor is known of each head, or stands behind each row:
// then it is the row's largest number by that of the kind, and depends on nothing else.
#pragma once

#include "../vectors.h"
#include "attention.h"

namespace {

constexpr float kLeastScale = 0x1p-126f;  // of a row of zeros

struct WholeBytes {
    static constexpr float kMost = 127;
    static Floats widen(Words codes) { return __builtin_convertvector((Ints)(codes << 24) >> 24, Floats); }
    static Words narrow(Floats v) { return (Words)(v + 0x1.8p23f) & 0xff; }  // a sum this large ends in whole numbers
};

template <int kMantissa, int kBias>
struct FloatBytes {
    static constexpr float kMost = kMantissa == 3 ? 448.0f : 57344.0f;
    static constexpr int kDropped = 23 - kMantissa;
    static constexpr uint32_t kRebias = 127 - kBias, kLeastNormal = (kRebias + 1) << 23;
    static constexpr uint32_t kSubnormal = (127 + 24 - kBias - kMantissa) << 23;  // a float whose last bit is a subnormal's

    static Floats widen(Words codes) {
        const Words sign = (codes & 0x80) << 24, magnitude = codes & 0x7f;
        const Words normal = (magnitude << kDropped) + (kRebias << 23);
        const Words small = (Words)((Floats)(magnitude + kSubnormal) - (Floats)(Words{} + kSubnormal));
        return (Floats)(sign | (magnitude < (1u << kMantissa) ? small : normal));
    }

    static Words narrow(Floats v) {
        const Words bits = (Words)v, sign = (bits >> 24) & 0x80, magnitude = bits & 0x7fffffff;
        const Words even = (magnitude >> kDropped) & 1;
        const Words normal = ((magnitude + ((1u << (kDropped - 1)) - 1) + even) >> kDropped) - (kRebias << kMantissa);
        const Words small = (Words)((Floats)magnitude + (Floats)(Words{} + kSubnormal)) - kSubnormal;
        const Words code = magnitude < kLeastNormal ? small : normal;
        return sign | (magnitude > 0x7f800000 ? Words{} + 0x7f : code);
    }
};

// Calls body with the kind of numbers that the cache holds.
template <typename Body>
inline void with_kind(const PagedAttention& a, Body body) {
    if (a.kept == kKeptInt8) return body(WholeBytes());
    if (a.kept == kKeptE4M3) return body(FloatBytes<3, 7>());
    body(FloatBytes<2, 15>());
}

// The row of a key (part 0) or value (1).
inline uint8_t* narrow_row(const PagedAttention& a, int64_t block, int64_t offset, int64_t head, int part) {
    const int64_t row = a.head_size + (a.key_scale ? 0 : sizeof(float)), parts = a.value_size ? 1 : 2;
    return static_cast<uint8_t*>(a.cache) + (((block * a.kv_heads + head) * parts + part) * a.block_size + offset) * row;
}

inline const float* known_scale(const PagedAttention& a, int64_t head, int part) {
    if (!a.key_scale) return nullptr;
    return (part ? a.value_scale : a.key_scale) + head;
}

// `to` has room for whole vectors of numbers.
template <typename Kind, typename T>
inline void widen_row(T* to, const uint8_t* row, int64_t size, const float* known) {
    typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
    float scale;
    if (known)
        scale = *known;
    else
        std::memcpy(&scale, row + size, sizeof scale);
    for (int64_t n = 0; n < size; n += kLanes) {
        Bytes codes = {};
        if (n + kLanes <= size)
            std::memcpy(&codes, row + n, kLanes);
        else
            std::memcpy(&codes, row + n, size - n);
        store(to + n, Kind::widen(__builtin_convertvector(codes, Words)) * scale);
    }
}

template <typename T>
inline float scale_of(const T* from, int64_t size, float most) {
    Floats largest = {}, poison = {};  // what is no number makes none of all
    for (int64_t n = 0; n < size; n += kLanes) {
        const Floats v = n + kLanes <= size ? load(from + n) : load(from + n, size - n);
        const Floats magnitude = (Floats)((Words)v & 0x7fffffff);
        largest = magnitude > largest ? magnitude : largest;
        poison += v * 0.0f;
    }
    float found = 0;
    for (int i = 0; i < kLanes; ++i) found = largest[i] > found ? largest[i] : found;
    const float scale = found / most;
    return (scale > kLeastScale ? scale : kLeastScale) + sum(poison);
}

template <typename Kind, typename T>
inline void narrow_row_of(uint8_t* row, const T* from, int64_t size, const float* known) {
    typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
    const float scale = known ? *known : scale_of(from, size, Kind::kMost);
    for (int64_t n = 0; n < size; n += kLanes) {
        const int64_t count = n + kLanes <= size ? kLanes : size - n;
        Floats v = (count == kLanes ? load(from + n) : load(from + n, count)) / scale;
        v = v > Kind::kMost ? spread(Kind::kMost) : v < -Kind::kMost ? spread(-Kind::kMost) : v;
        const Bytes codes = __builtin_convertvector(Kind::narrow(v), Bytes);
        std::memcpy(row + n, &codes, count);
    }
    if (!known) std::memcpy(row + size, &scale, sizeof scale);
}

// Writes the keys and values of one head.
template <typename T>
void write_narrow(const PagedAttention& a, int64_t head) {
    with_kind(a, [&](auto kind) {
        using Kind = decltype(kind);
        for (int64_t i = 0; i < a.num_slots; ++i) {
            const int64_t block = a.slots[i] / a.block_size, offset = a.slots[i] % a.block_size;
            const T* key = key_of<T>(a, i, head);
            narrow_row_of<Kind>(narrow_row(a, block, offset, head, 0), key, a.head_size, known_scale(a, head, 0));
            if (a.value_size) continue;
            const T* value = value_of<T>(a, i, head);
            narrow_row_of<Kind>(narrow_row(a, block, offset, head, 1), value, a.head_size, known_scale(a, head, 1));
        }
    });
}

}  // namespace
