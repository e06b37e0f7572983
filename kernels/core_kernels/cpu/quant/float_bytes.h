// Eight-bit floats (E4M3) to bfloat16 by table lookups of their nibbles, 32 codes at a time (AVX2).
#pragma once

#include <cstdint>
#if defined(__AVX2__) && !defined(__AVX512BW__)
#include <immintrin.h>

namespace {

// The bytes of bfloat16 numbers by the lower nibble of a code, where the upper one is zero: the
// subnormal numbers k / 512, and the first normal ones.
alignas(16) constexpr uint8_t kSmallUpper[16] = {0x00, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c,
                                                 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c};
alignas(16) constexpr uint8_t kSmallLower[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60,
                                                 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0};

inline __m256i lookup_nibbles(const uint8_t (&table)[16], __m256i nibbles) {
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), nibbles);
}

// Decodes the codes of 32-bit lanes: returns those of bytes 0 and 2 as pairs, and those of bytes 1
// and 3 in `odd`.
template <typename Register>
inline Register split_bytes(Register codes, Register* odd) {
    const __m256i own = (__m256i)codes, nibble = _mm256_set1_epi8(0x0f);
    const __m256i low = _mm256_and_si256(own, nibble),
                  magnitude = _mm256_and_si256(own, _mm256_set1_epi8(0x7f)),
                  high = _mm256_and_si256(_mm256_srli_epi16(magnitude, 4), nibble);
    const __m256i small = _mm256_cmpeq_epi8(high, _mm256_setzero_si256());
    // Of a normal number: the upper byte is 0x3c plus the upper nibble, the lower byte the lower
    // nibble.
    __m256i upper = _mm256_blendv_epi8(_mm256_add_epi8(high, _mm256_set1_epi8(0x3c)),
                                       lookup_nibbles(kSmallUpper, low), small);
    const __m256i lower = _mm256_blendv_epi8(_mm256_slli_epi16(low, 4),
                                             lookup_nibbles(kSmallLower, low), small);
    const __m256i nan = _mm256_cmpeq_epi8(magnitude, _mm256_set1_epi8(0x7f));
    upper = _mm256_or_si256(upper, _mm256_and_si256(own, _mm256_set1_epi8(-0x80)));
    upper = _mm256_or_si256(upper, _mm256_and_si256(nan, _mm256_set1_epi8(0x7f)));
    const __m256i mask = _mm256_set1_epi16(static_cast<short>(0xff00));
    *odd = (Register)_mm256_blendv_epi8(_mm256_srli_epi16(lower, 8), upper, mask);
    return (Register)_mm256_blendv_epi8(lower, _mm256_slli_epi16(upper, 8), mask);
}

}  // namespace

#endif
