// Eight-bit KV cache: each cached vector is a row of codes times a scale.
//
// Within a block each head has its key rows, then its value rows. The scale is given per head, or
// stored after each row. A stored scale is the row's largest magnitude divided by the largest code.
#pragma once

#include "cpu/vectors.h"
#include "cpu/attention/attention.h"

namespace {

constexpr float kMinScale = 0x1p-126f;  // scale of an all-zero row

struct Int8Codes {
    static constexpr float kMax = 127;
    static Floats decode(Words codes) {
        return convert<Floats>((Ints)(codes << 24) >> 24);
    }
    static Words encode(Floats v) {
        return (Words)(v + 0x1.8p23f) & 0xff;
    }  // adding 1.5 * 2^23 rounds to an integer
};

template <int kMantissa, int kBias>
struct Float8Codes {
    static constexpr float kMax = kMantissa == 3 ? 448.0f : 57344.0f;
    static constexpr int kDropped = 23 - kMantissa;
    static constexpr uint32_t kRebias = 127 - kBias, kMinNormal = (kRebias + 1) << 23;
    static constexpr uint32_t kSubnormal =
        (127 + 24 - kBias - kMantissa)
        << 23;  // a float that shares its last bit with a subnormal code

    static Floats decode(Words codes) {
        const Words sign = (codes & 0x80) << 24, magnitude = codes & 0x7f;
        const Words normal = (magnitude << kDropped) + (kRebias << 23);
        const Words small =
            (Words)((Floats)(magnitude + kSubnormal) - (Floats)(Words{} + kSubnormal));
        return (Floats)(sign | select(magnitude < (1u << kMantissa), small, normal));
    }

    static Words encode(Floats v) {
        const Words bits = (Words)v, sign = (bits >> 24) & 0x80, magnitude = bits & 0x7fffffff;
        const Words even = (magnitude >> kDropped) & 1;
        const Words normal = ((magnitude + ((1u << (kDropped - 1)) - 1) + even) >> kDropped) -
                             (kRebias << kMantissa);
        const Words small =
            (Words)((Floats)magnitude + (Floats)(Words{} + kSubnormal)) - kSubnormal;
        const Words code = select(magnitude < kMinNormal, small, normal);
        return sign | select(magnitude > 0x7f800000, Words{} + 0x7f, code);
    }
};

// Calls body with the codec of the cache's format.
template <typename Body>
inline void with_kind(const PagedAttention& a, Body body) {
    if (a.cache_format == kCacheInt8) return body(Int8Codes());
    if (a.cache_format == kCacheE4M3) return body(Float8Codes<3, 7>());
    body(Float8Codes<2, 15>());
}

// Returns the row of a key (part 0) or value (part 1).
inline uint8_t* cache_row(const PagedAttention& a, int64_t block, int64_t offset, int64_t head,
                          int part) {
    const int64_t row = a.head_size + (a.key_scale ? 0 : sizeof(float)),
                  parts = a.value_size ? 1 : 2;
    return static_cast<uint8_t*>(a.cache) +
           (((block * a.kv_heads + head) * parts + part) * a.block_size + offset) * row;
}

inline const float* head_scale(const PagedAttention& a, int64_t head, int part) {
    if (!a.key_scale) return nullptr;
    return (part ? a.value_scale : a.key_scale) + head;
}

// `to` is padded to whole vectors.
template <typename Kind, typename T>
inline void dequantize_row(T* to, const uint8_t* row, int64_t size, const float* head_scale) {
    float scale;
    if (head_scale)
        scale = *head_scale;
    else
        std::memcpy(&scale, row + size, sizeof scale);
    int64_t n = 0;
    for (; n + kLanes <= size; n += kLanes)
        store(to + n, Kind::decode(load_bytes(row + n)) * scale);
    if (n < size) {
        uint8_t codes[kLanes] = {};
        std::memcpy(codes, row + n, size - n);
        store(to + n, Kind::decode(load_bytes(codes)) * scale);
    }
}

template <typename T>
inline float scale_of(const T* from, int64_t size, float max_code) {
    Floats largest = {}, poison = {};  // a NaN in the row makes the scale NaN
    for (int64_t n = 0; n < size; n += kLanes) {
        const Floats v = n + kLanes <= size ? load(from + n) : load(from + n, size - n);
        const Floats magnitude = (Floats)((Words)v & 0x7fffffff);
        largest = select(magnitude > largest, magnitude, largest);
        poison += v * 0.0f;
    }
    const float found = reduce(largest, [](auto a, auto b) { return select(a > b, a, b); });
    const float scale = found / max_code;
    return (scale > kMinScale ? scale : kMinScale) + sum(poison);
}

template <typename Kind, typename T>
inline void quantize_row(uint8_t* row, const T* from, int64_t size, const float* head_scale) {
    const float scale = head_scale ? *head_scale : scale_of(from, size, Kind::kMax);
    for (int64_t n = 0; n < size; n += kLanes) {
        const int64_t count = n + kLanes <= size ? kLanes : size - n;
        Floats v = (count == kLanes ? load(from + n) : load(from + n, count)) / scale;
        v = select(v > Kind::kMax, spread(Kind::kMax), v);
        v = select(v < -Kind::kMax, spread(-Kind::kMax), v);
        uint8_t codes[kLanes];
        store_bytes(codes, Kind::encode(v));
        std::memcpy(row + n, codes, count);
    }
    if (!head_scale) std::memcpy(row + size, &scale, sizeof scale);
}

// Writes the keys and values of one head.
template <typename T>
void write_quantized(const PagedAttention& a, int64_t head) {
    with_kind(a, [&](auto kind) {
        using Kind = decltype(kind);
        for (int64_t i = 0; i < a.num_slots; ++i) {
            const int64_t block = a.slots[i] / a.block_size, offset = a.slots[i] % a.block_size;
            const T* key = key_of<T>(a, i, head);
            quantize_row<Kind>(cache_row(a, block, offset, head, 0), key, a.head_size,
                               head_scale(a, head, 0));
            if (a.value_size) continue;
            const T* value = value_of<T>(a, i, head);
            quantize_row<Kind>(cache_row(a, block, offset, head, 1), value, a.head_size,
                               head_scale(a, head, 1));
        }
    });
}

}  // namespace
