// Vectors of sixteen floats: loads and stores of every element type, exp and sums.
//
// They are GCC vectors where a register holds sixteen floats, else pairs of vectors of half the
// width, or pairs of pairs. Everything is in an anonymous namespace: each instruction set has its
// own copy, and copies must not be merged.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "cpu/vector_pair.h"

namespace {

constexpr int kLanes = 16;

#if defined(__AVX512F__) || !defined(PAIRED_VECTORS)
constexpr int kRegister = 64;  // bytes
#elif defined(__AVX2__)
constexpr int kRegister = 32;
#else
constexpr int kRegister = 16;
#endif

// A vector of some bytes: a register's, or a pair of halves.
template <typename Number, int kBytes, bool kIsPair = (kBytes > kRegister)>
struct VectorOf {
    typedef Number Type __attribute__((vector_size(kBytes)));
};
template <typename Number, int kBytes>
struct VectorOf<Number, kBytes, true> {
    typedef VectorPair<typename VectorOf<Number, kBytes / 2>::Type> Type;
};

typedef VectorOf<float, kLanes * 4>::Type Floats;
typedef VectorOf<int32_t, kLanes * 4>::Type Ints;
typedef VectorOf<uint32_t, kLanes * 4>::Type Words;
typedef VectorOf<uint16_t, kLanes * 2>::Type Halves;

struct BFloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

// Subtracting zero changes no number, not even the sign of zero, so it costs no instruction.
inline Floats spread(float value) { return value - Floats{}; }

// Combines all lanes: the first half with the second half, and so on.
template <typename Vector, typename Combine>
inline auto reduce(Vector v, Combine combine) {
    if constexpr (sizeof v == sizeof v[0]) {
        return v[0];
    } else {
        typedef std::remove_reference_t<decltype(v[0])> Number;
        typedef Number Half __attribute__((vector_size(sizeof v / 2)));
        Half halves[2];
        std::memcpy(halves, &v, sizeof v);
        return reduce(combine(halves[0], halves[1]), combine);
    }
}

template <typename Half, typename Combine>
inline auto reduce(VectorPair<Half> v, Combine combine) {
    return reduce(combine(v.low, v.high), combine);
}

inline float sum(Floats v) {
    return reduce(v, [](auto first, auto second) { return first + second; });
}

// Loads and stores vectors of 32-bit numbers register by register; memory may hold smaller ones.
template <typename Vector>
struct Memory {
    static constexpr int kCount = sizeof(Vector) / sizeof(int32_t);

    static Vector load(const void* from) {
        Vector v;
        std::memcpy(&v, from, sizeof v);
        return v;
    }
    static void store(void* to, Vector v) { std::memcpy(to, &v, sizeof v); }

    template <typename Number>
    static Vector load_as(const Number* from) {
#if defined(__AVX2__)
        // GCC widens a vector of this size by halves, and joins them.
        typedef uint32_t Eight __attribute__((vector_size(32)));
        if constexpr (std::is_same_v<Vector, Eight> && std::is_same_v<Number, uint16_t>)
            return (Vector)_mm256_cvtepu16_epi32(
                _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        if constexpr (std::is_same_v<Vector, Eight> && std::is_same_v<Number, uint8_t>)
            return (Vector)_mm256_cvtepu8_epi32(
                _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#endif
        typedef Number Small __attribute__((vector_size(kCount * sizeof(Number))));
        Small small;
        std::memcpy(&small, from, sizeof small);
        return __builtin_convertvector(small, Vector);
    }
    template <typename Number>
    static void store_as(Number* to, Vector v) {
        typedef Number Small __attribute__((vector_size(kCount * sizeof(Number))));
        const Small small = __builtin_convertvector(v, Small);
        std::memcpy(to, &small, sizeof small);
    }
};

template <typename Half>
struct Memory<VectorPair<Half>> {
    static constexpr int kCount = 2 * Memory<Half>::kCount;

    static VectorPair<Half> load(const void* from) {
        return {Memory<Half>::load(from),
                Memory<Half>::load(static_cast<const char*>(from) + sizeof(Half))};
    }
    static void store(void* to, VectorPair<Half> v) {
        Memory<Half>::store(to, v.low);
        Memory<Half>::store(static_cast<char*>(to) + sizeof(Half), v.high);
    }
    template <typename Number>
    static VectorPair<Half> load_as(const Number* from) {
        return {Memory<Half>::load_as(from), Memory<Half>::load_as(from + kCount / 2)};
    }
    template <typename Number>
    static void store_as(Number* to, VectorPair<Half> v) {
        Memory<Half>::store_as(to, v.low);
        Memory<Half>::store_as(to + kCount / 2, v.high);
    }
};

inline Floats load(const float* from) { return Memory<Floats>::load(from); }
inline void store(float* to, Floats v) { Memory<Floats>::store(to, v); }

inline Words load_bits(const void* from) {
#if defined(__AVX512F__)
    return (Words)_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
#else
    return Memory<Words>::load_as(static_cast<const uint16_t*>(from));
#endif
}

inline Words load_bytes(const void* from) {
#if defined(__AVX512F__)
    return (Words)_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)));
#else
    return Memory<Words>::load_as(static_cast<const uint8_t*>(from));
#endif
}

// Powers of two by float32 exponent: 0 means zero, 255 infinity.
inline Floats load_powers(const void* from) { return (Floats)(load_bytes(from) << 23); }

inline void store_bits(void* to, Words wide) {
    Memory<Words>::store_as(static_cast<uint16_t*>(to), wide);
}

inline void store_bytes(uint8_t* to, Words wide) { Memory<Words>::store_as(to, wide); }

inline Floats load(const BFloat16* from) { return (Floats)(load_bits(from) << 16); }

inline void store(BFloat16* to, Floats v) {
    Words bits = (Words)v;
    Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
    // Rounding must not turn a NaN into infinity.
    store_bits(to, select(v == v, rounded, Words{} + 0x7fc0));
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
    const __m256 low = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    const __m256 high =
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + 1));
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
    return (Floats)(sign | select(magnitude >= 0x0f800000, special, finite));
}

inline void store(Float16* to, Floats v) {
    Words bits = (Words)v;
    Words sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    // Adding 0.5 aligns the last bit of a half subnormal with the last bit of the float: the adder
    // rounds.
    Words subnormal = (Words)((Floats)magnitude + 0.5f) - 0x3f000000;
    Words normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    Words half = select(magnitude < 0x38800000, subnormal, normal);
    half = select(magnitude >= 0x477ff000, Words{} + 0x7c00, half);
    half = select(magnitude > 0x7f800000, Words{} + 0x7e00, half);
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
    x = select(x > 88.0f, spread(88.0f), x);
    x = select(x < -87.0f, spread(-87.0f), x);
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
