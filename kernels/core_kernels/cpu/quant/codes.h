// Integer codes: weights of eight or four bits, activations of sixteen, and exact dot products of
// them. Four-bit floats are integers too: doubled, they are 0, 1, 2, 3, 4, 6, 8 and 12.
//
// A word holds the unsigned codes of one column for a step: four inputs of eight bits, or eight
// inputs of four bits (the first four in the low nibbles). Integer sums do not depend on their
// order, so each instruction set and row count may use its own: byte instructions need x as two
// bytes, 16-bit instructions need widened weights.
#pragma once

#include "cpu/quant/quantized.h"
#include "cpu/gemm/tiles.h"
#include "cpu/vector_memory.h"
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

constexpr int64_t kInputsTogether = 8;  // rows are padded to a multiple
constexpr int kQuad = 4;                // inputs in one word of bytes

// The sixteen four-bit floats (E2M1), doubled and offset by the smallest; indexed by code, sign bit
// first.
alignas(16) constexpr uint8_t kFourBitFloats[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                    12, 11, 10, 9,  8,  6,  4,  0};

// Looks up each byte of `codes` (below sixteen) in the table.
inline Words lookup_bytes(const uint8_t (&table)[16], Words codes) {
#if defined(__AVX512BW__)
    const __m512i bytes =
        _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
    return (Words)_mm512_shuffle_epi8(bytes, (__m512i)codes);
#elif defined(__AVX2__)
    const __m256i bytes =
        _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
    return in_registers(codes, [&](auto half) {
        return (decltype(half))_mm256_shuffle_epi8(bytes, (__m256i)half);
    });
#else
    uint8_t bytes[sizeof codes];
    std::memcpy(bytes, &codes, sizeof codes);
    for (uint8_t& byte : bytes) byte = table[byte];
    std::memcpy(&codes, bytes, sizeof codes);
    return codes;
#endif
}

// Inverse of `kFourBitFloats`: codes by value; 15 where there is none.
struct FloatCodes {
    static constexpr int kNumbers = 25;
    uint8_t codes[kNumbers] = {};

    constexpr FloatCodes() {
        for (int number = 0; number < kNumbers; ++number)
            while (codes[number] < 15 && kFourBitFloats[codes[number]] != number) ++codes[number];
    }
    int code(int number) const { return number >= 0 && number < kNumbers ? codes[number] : 15; }
};
constexpr FloatCodes kFloatCodes;

// Codes of one kind (quantized.h). Stored codes are unsigned; `code` converts.
template <int kCode>
struct Codes {
    static constexpr int kBits = kCode == kInt8 ? 8 : 4;
    static constexpr int kInputs = 32 / kBits;  // per step
    static constexpr int kZero =
        kCode == kFloat4 ? 12 : 1 << (kBits - 1);  // the unsigned code of zero
    static constexpr float kMin = kBits == 8 ? -127 : -8,
                           kMax = kZero - 1;  // range for rounding plain weights

    static Words quad(Words words, int at) {
        if constexpr (kBits == 8) return words;
        const Words codes = (words >> (4 * at)) & 0x0f0f0f0f;
        return kCode == kFloat4 ? lookup_bytes(kFourBitFloats, codes) : codes;
    }

    // Inputs 0 and 2, or 1 and 3, of a quad, as 16-bit pairs; the pairs of all quads are counted.
    static Words pair(Words words, int at) {
        if constexpr (kCode == kFloat4) return (quad(words, at / 2) >> (8 * (at % 2))) & 0x00ff00ff;
        return (words >> (kBits == 8 ? 8 * at : 4 * (at / 2) + 8 * (at % 2))) &
               (kBits == 8 ? 0x00ff00ff : 0x000f000f);
    }

    static uint32_t word(const int8_t* codes) {
        uint32_t bits = 0;
        for (int i = 0; i < kInputs; ++i)
            bits |= static_cast<uint32_t>(unsigned_code(codes[i] + kZero)) << bit_of(i);
        return bits;
    }
    static float code(uint32_t word, int64_t input, float zero) {
        const uint32_t own = word >> bit_of(input) & ((1u << kBits) - 1);
        return static_cast<float>(kCode == kFloat4 ? kFourBitFloats[own] : own) - zero;
    }

private:
    static constexpr int bit_of(int64_t input) {
        return static_cast<int>(8 * (input % kQuad) + 4 * (input / kQuad));
    }
    static int unsigned_code(int number) {
        return kCode == kFloat4 ? kFloatCodes.code(number) : number;
    }
};

inline Words load_words(const void* from) { return load_vector<Words>(from); }

inline Words spread_word(const void* from) {
    uint32_t word;
    std::memcpy(&word, from, sizeof word);
    return Words{} + word;
}

// Of a quad: inputs 0 and 2, or 1 and 3, as 16-bit pairs.
inline Words pair(Words quad, int at) { return (quad >> (8 * at)) & 0x00ff00ff; }
constexpr int64_t pair_index(int64_t input) {
    return (input & ~3) | (input & 1) << 1 | (input & 2) >> 1;
}

// Subtracts a number from both halves of each lane.
inline Words subtract_halves(Words halves, uint32_t number) {
    return in_registers(halves, [&](auto own) {
        typedef uint16_t Shorts __attribute__((vector_size(sizeof own)));
        return (decltype(own))((Shorts)own - static_cast<uint16_t>(number));
    });
}

// sums + the products of both 16-bit halves of each lane (signed).
inline Ints add_pairs(Ints sums, Words x, Words weights) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)x, (__m512i)weights);
#elif defined(__AVX512BW__)
    return sums + (Ints)_mm512_madd_epi16((__m512i)x, (__m512i)weights);
#elif defined(__AVXVNNI__)
    return (Ints)in_registers((Words)sums, x, weights, [](auto sum, auto a, auto b) {
        return (decltype(sum))_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
    });
#elif defined(__AVX2__)
    return sums + (Ints)in_registers(x, weights, [](auto a, auto b) {
               return (decltype(a))_mm256_madd_epi16((__m256i)a, (__m256i)b);
           });
#elif defined(__SSE2__)
    return sums + (Ints)in_registers(x, weights, [](auto a, auto b) {
               return (decltype(a))_mm_madd_epi16((__m128i)a, (__m128i)b);
           });
#elif defined(__aarch64__)
    return (Ints)in_registers((Words)sums, x, weights, [](auto sum, auto a, auto b) {
        const int16x8_t first = (int16x8_t)a, second = (int16x8_t)b;
        const int32x4_t low = vmull_s16(vget_low_s16(first), vget_low_s16(second)),
                        high = vmull_high_s16(first, second);
        return (decltype(sum))vaddq_s32((int32x4_t)sum, vpaddq_s32(low, high));
    });
#else
    const Ints low = ((Ints)(x << 16) >> 16) * ((Ints)(weights << 16) >> 16);
    return sums + low + ((Ints)x >> 16) * ((Ints)weights >> 16);
#endif
}

#if defined(__AVX512VNNI__)
constexpr bool kMultipliesBytes = true;
// sums + the products of the bytes of each lane, x signed and weights unsigned.
inline Ints add_bytes(Ints sums, Words x, Words weights) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, (__m512i)x);
}
#elif defined(__AVXVNNI__)
constexpr bool kMultipliesBytes = false;  // 16-bit x as pairs is as fast
inline Ints add_bytes(Ints sums, Words x, Words weights) {
    return (Ints)in_registers((Words)sums, weights, x, [](auto sum, auto a, auto b) {
        return (decltype(sum))_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
    });
}
#elif defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool kMultipliesBytes = false;
inline Ints add_bytes(Ints sums, Words x, Words weights) {
    return (Ints)in_registers((Words)sums, weights, x, [](auto sum, auto a, auto b) {
        return (decltype(sum))vusdotq_s32((int32x4_t)sum, (uint8x16_t)a, (int8x16_t)b);
    });
}
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr bool kMultipliesBytes = false;
// Both factors are signed: weights are multiplied minus 128, which is added again as twice 64.
inline Ints add_bytes(Ints sums, Words x, Words weights) {
    return (Ints)in_registers((Words)sums, weights, x, [](auto sum, auto a, auto b) {
        const int8x16_t own = veorq_s8((int8x16_t)a, vdupq_n_s8(-128)), numbers = (int8x16_t)b;
        const int32x4_t half = vdotq_s32(vdupq_n_s32(0), numbers, vdupq_n_s8(64)),
                        offset = vaddq_s32(half, half);
        return (decltype(sum))vaddq_s32(vdotq_s32((int32x4_t)sum, own, numbers), offset);
    });
}
#else
constexpr bool kMultipliesBytes = false;
inline Ints add_bytes(Ints sums, Words, Words) { return sums; }
#endif
// Whether products of bytes are added to sums of 32 bits.
#if defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
constexpr bool kAddsBytes = true;
#else
constexpr bool kAddsBytes = kMultipliesBytes;
#endif

#if defined(__AVX2__)
// Adds to a sum where the source says so: GCC would store all terms of a chain and add them later.
inline Words pinned(Words sum) {
    return in_registers(sum, [](auto own) {
        asm volatile("" : "+x"(own));
        return own;
    });
}

// The order of sixteen bytes that takes one of each lane's to the upper bytes of its halves.
inline __m128i bytes_taken(int at) {
    const int first = 0x00800080 | at << 24 | at << 8, lane = 0x04000400;
    return _mm_setr_epi32(first, first + lane, first + 2 * lane, first + 3 * lane);
}

// Prefetches between pinned sums: GCC would move all prefetches before them, and they exceed the
// outstanding misses of a core.
inline void prefetch_pinned(const uint8_t* line) {
    asm volatile("prefetcht1 %0" : : "m"(*line));
}
#else
inline void prefetch_pinned(const uint8_t* line) { __builtin_prefetch(line, 0, 2); }
#endif

// Without those instructions: products of bytes are added in pairs to sums of 16 bits, which hold
// some of them if codes are small.
#if defined(__AVX512BW__) && !defined(__AVX512VNNI__)
constexpr bool kMultipliesSmallBytes = true;

// The sums of two products of each half of a lane, x signed and weights unsigned.
inline Words multiply_bytes(Words x, Words weights) {
    return (Words)_mm512_maddubs_epi16((__m512i)weights, (__m512i)x);
}
// The same for codes of any size that are 128 too large: of numbers, only magnitudes are unsigned.
inline Words multiply_signed_bytes(Words x, Words weights) {
    const __m512i own = (__m512i)(weights ^ 0x80808080), numbers = (__m512i)x;
    const __m512i turned = _mm512_mask_sub_epi8(numbers, _mm512_movepi8_mask(own),
                                                _mm512_setzero_si512(), numbers);
    return (Words)_mm512_maddubs_epi16(_mm512_abs_epi8(own), turned);
}
inline Words add_halves(Words a, Words b) {
    return pinned((Words)_mm512_add_epi16((__m512i)a, (__m512i)b));
}
inline Words subtract_each_half(Words a, Words b) {
    return (Words)_mm512_sub_epi16((__m512i)a, (__m512i)b);
}
// One of the four signed bytes of each lane, in both halves of the lane.
inline Words byte_in_halves(Words words, int at) {
    const __m512i order = _mm512_broadcast_i32x4(bytes_taken(at));
    return (Words)_mm512_srai_epi16(_mm512_shuffle_epi8((__m512i)words, order), 8);
}
#elif defined(__AVX2__) && !defined(__AVX512F__)
constexpr bool kMultipliesSmallBytes = true;

// The sums of two products of each half of a lane, x signed and weights unsigned.
inline Words multiply_bytes(Words x, Words weights) {
    return in_registers(x, weights, [](auto a, auto b) {
        return (decltype(a))_mm256_maddubs_epi16((__m256i)b, (__m256i)a);
    });
}
// The same for codes of any size that are 128 too large: of numbers, only magnitudes are unsigned.
inline Words multiply_signed_bytes(Words x, Words weights) {
    return in_registers(x, weights ^ 0x80808080, [](auto a, auto b) {
        const __m256i own = (__m256i)b;
        return (decltype(a))_mm256_maddubs_epi16(_mm256_abs_epi8(own),
                                                 _mm256_sign_epi8((__m256i)a, own));
    });
}
inline Words add_halves(Words a, Words b) {
    return pinned(in_registers(a, b, [](auto x, auto y) {
        return (decltype(x))_mm256_add_epi16((__m256i)x, (__m256i)y);
    }));
}
inline Words subtract_each_half(Words a, Words b) {
    return in_registers(a, b, [](auto x, auto y) {
        return (decltype(x))_mm256_sub_epi16((__m256i)x, (__m256i)y);
    });
}
// One of the four signed bytes of each lane, in both halves of the lane.
inline Words byte_in_halves(Words words, int at) {
    const __m256i order = _mm256_broadcastsi128_si256(bytes_taken(at));
    return in_registers(words, [&](auto own) {
        return (decltype(own))_mm256_srai_epi16(_mm256_shuffle_epi8((__m256i)own, order), 8);
    });
}
#else
constexpr bool kMultipliesSmallBytes = false;
inline Words multiply_bytes(Words x, Words) { return x; }
inline Words multiply_signed_bytes(Words x, Words) { return x; }
inline Words add_halves(Words a, Words) { return a; }
#endif

// Larger codes are multiplied as signed numbers.
constexpr bool multiplies_signed(int max_code) {
    return kMultipliesSmallBytes && !kAddsBytes && max_code > 127;
}
// Number of sums of two products that fit 16 bits, for codes up to this one and bytes up to 127.
constexpr int pairs_in_half(int max_code) {
    return 32767 / (2 * 127 * (max_code > 127 ? 128 : max_code));
}

}  // namespace
