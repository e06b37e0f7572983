// Vectors of sixteen floats: loads and stores of every element type, exp and sums.
//
// GCC vector extensions compile to one, two or four registers, depending on the instruction set.
// Everything is in an anonymous namespace: each instruction set has its own copy, and copies must
// not be merged.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace {

constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));

struct BFloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

inline Floats spread(float value) { return Floats{} + value; }

inline float sum(Floats v) {
    float lanes[kLanes];
    std::memcpy(lanes, &v, sizeof lanes);
    for (int step = kLanes / 2; step > 0; step /= 2)
        for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
    return lanes[0];
}

inline Floats load(const float* from) {
    Floats v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

inline void store(float* to, Floats v) { std::memcpy(to, &v, sizeof v); }

inline Words load_bits(const void* from) {
#if defined(__AVX512F__)
    return (Words)_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
#else
    Halves bits;
    std::memcpy(&bits, from, sizeof bits);
    return __builtin_convertvector(bits, Words);
#endif
}

inline Words load_bytes(const void* from) {
#if defined(__AVX512F__)
    return (Words)_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)));
#else
    typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
    Bytes bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(bytes, Words);
#endif
}

// Powers of two by float32 exponent: 0 means zero, 255 infinity.
inline Floats load_powers(const void* from) { return (Floats)(load_bytes(from) << 23); }

inline void store_bits(void* to, Words wide) {
    Halves bits = __builtin_convertvector(wide, Halves);
    std::memcpy(to, &bits, sizeof bits);
}

inline Floats load(const BFloat16* from) { return (Floats)(load_bits(from) << 16); }

inline void store(BFloat16* to, Floats v) {
    Words bits = (Words)v;
    Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
    store_bits(to,
               v == v ? rounded : Words{} + 0x7fc0);  // rounding must not turn a NaN into infinity
}

#if defined(__AVX512F__)
inline Floats load(const Float16* from) {
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

inline void store(Float16* to, Floats v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
inline Floats load(const Float16* from) {
    __m256 low = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    __m256 high = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + 1));
    Floats v;
    std::memcpy(&v, &low, sizeof low);
    std::memcpy(reinterpret_cast<char*>(&v) + sizeof low, &high, sizeof high);
    return v;
}

inline void store(Float16* to, Floats v) {
    __m256 low, high;
    std::memcpy(&low, &v, sizeof low);
    std::memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof low, sizeof high);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + 1,
                     _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT));
}
#else
inline Floats load(const Float16* from) {
    Words bits = load_bits(from);
    Words sign = (bits & 0x8000) << 16, magnitude = (bits & 0x7fff) << 13;
    Words finite = (Words)((Floats)magnitude *
                           0x1p112f);  // shifts the exponent bias; exact for subnormals too
    Words special = magnitude | 0x7f800000;
    return (Floats)(sign | (magnitude >= 0x0f800000 ? special : finite));
}

inline void store(Float16* to, Floats v) {
    Words bits = (Words)v;
    Words sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    // Adding 0.5 aligns the last bit of a half subnormal with the last bit of the float: the adder
    // rounds.
    Words subnormal = (Words)((Floats)magnitude + 0.5f) - 0x3f000000;
    Words normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    Words half = magnitude < 0x38800000 ? subnormal : normal;
    half = magnitude >= 0x477ff000 ? Words{} + 0x7c00 : half;
    half = magnitude > 0x7f800000 ? Words{} + 0x7e00 : half;
    store_bits(to, sign | half);
}
#endif

// The last, partial vector of a row; missing lanes are zero.
template <typename T>
inline Floats load(const T* from, int64_t count) {
    T lanes[kLanes] = {};
    std::memcpy(lanes, from, count * sizeof(T));
    return load(lanes);
}

template <typename T>
inline void store(T* to, Floats v, int64_t count) {
    T lanes[kLanes];
    store(lanes, v);
    std::memcpy(to, lanes, count * sizeof(T));
}

// Within two units in the last place over [-87, 88], clamped outside; NaN stays NaN.
inline Floats exp(Floats x) {
    x = x > 88.0f ? spread(88.0f) : x;
    x = x < -87.0f ? spread(-87.0f) : x;
    const float to_integer = 0x1.8p23f;  // adding 1.5 * 2^23 rounds to an integer
    Floats shifted = x * 1.44269504f + to_integer;
    Floats n = shifted - to_integer;
    Floats r = (x - n * 0.693359375f) +
               n * 2.12194440e-4f;        // x - n ln 2, in two parts: the first is exact
    Floats p = spread(1.9875691500e-4f);  // the polynomial of Cephes' expf
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    Ints exponent = ((Ints)shifted - 0x4b400000) << 23;
    return (Floats)((Ints)p + exponent);
}

inline Floats sigmoid(Floats x) { return 1.0f / (1.0f + exp(-x)); }

}  // namespace
