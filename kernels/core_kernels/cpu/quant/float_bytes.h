// Eight-bit floats of AVX2, 32 codes at a time: E4M3 to bfloat16 by table lookups of their nibbles,
// E5M2 to float32 as the upper bytes of float16 numbers.
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

// The E4M3 numbers in one byte of 32-bit lanes times 2^-120: their bits moved to those of float32,
// which has a bias larger by 120. Those of exponent 0 become subnormal, and NaN 480 * 2^-120.
template <int kByte>
inline __m256 shift_byte(__m256i codes) {
    const __m256i at_top = _mm256_slli_epi32(codes, 24 - 8 * kByte);
    return (__m256)_mm256_and_si256(_mm256_srai_epi32(at_top, 4),
                                    _mm256_set1_epi32(static_cast<int>(0x87f00000)));
}

// Decodes the codes of eight 32-bit lanes; an input is byte 0, 2, 1 or 3 of all lanes.
inline void widen_halves(__m256i codes, __m256 (&inputs)[4]) {
    const __m256i by_input = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15));
    // Inputs 0 and 2 in the lower half of the register, 1 and 3 in the upper one.
    const __m256i own = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(codes, by_input),
                                                    _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7));
    const __m256i zero = _mm256_setzero_si256(), first = _mm256_unpacklo_epi8(zero, own),
                  second = _mm256_unpackhi_epi8(zero, own);
    inputs[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(first));
    inputs[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(first, 1));
    inputs[2] = _mm256_cvtph_ps(_mm256_castsi256_si128(second));
    inputs[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(second, 1));
}

}  // namespace

#endif
