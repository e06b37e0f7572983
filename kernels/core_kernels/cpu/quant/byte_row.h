// One row of x in two bytes times a whole panel of four-bit codes, with AVX2.
//
// Without AVX-VNNI, products of bytes are added in pairs to sums of 16 bits, which hold those of
// some steps; multiplied by 1 (low bytes) and 256 (high bytes) these are added to sums of 32 bits.
// All are exact, so results are those of other rows and blocks, bit by bit.
//
// Each kind of scales and zero points has a loop of its own, which is not inlined: as part of a
// larger function its sums and addresses lay on the stack.
#pragma once

#include "cpu/gemm/micro_kernel.h"
#include "cpu/quant/integer_panels.h"

namespace {

constexpr int64_t kWholeSteps = 32;  // inputs: a multiple of those that are added together

// Whether a row of x times codes of a kind is such a product.
#if defined(__AVX2__) && !defined(__AVX512F__)
template <int kCode>
constexpr bool kHasByteRow = kCode != kInt8;

template <int kCode, int kScales, int kZeros>
class ByteRow {
    using Code = Codes<kCode>;
    static constexpr int kLargestCode = kCode == kFloat4 ? 24 : 15;
    static constexpr int kSteps = std::min(4, pairs_in_half(kLargestCode) * kQuad / Code::kInputs);
    static constexpr int kTogether = 2;  // tiles: sums of both bytes take eight registers
    static constexpr int kHalves = 2 * kTogether;  // registers of a step
    static constexpr int kHalfLanes = kLanes / 2;
    static constexpr int64_t kStepBytes = kPanel * sizeof(uint32_t);
    static constexpr int64_t kScaleBytes = kScales >= kByteScales ? 1 : 2,
                             kHeadBytes = kPanel * (kScaleBytes + (kZeros ? 2 : 0));
    static constexpr int64_t kFetchAhead = 12288;

public:
    static constexpr int64_t kInputs = kSteps * Code::kInputs;  // groups are multiples
    static_assert(kWholeSteps % kInputs == 0);

    // Adds the products with a panel, from its first group on, to totals of its columns. Prefetches
    // as much as it reads.
    static __attribute__((noinline)) void multiply(float* totals, const QuantizedRows& rows,
                                                   int64_t row, const uint8_t* group,
                                                   const Layout& at) {
        const int64_t next = rows.count, largest = at.group;
        const int8_t *low = &rows.low[rows.at(row, 0)], *high = &rows.high[rows.at(row, 0)];
        const int32_t* x_sum = &rows.sums[row];
        const float* x_scale = &rows.scales[row];
        for (int64_t left = at.filled(); left > 0; left -= largest) {
            const int64_t inputs = std::min(largest, left);
            const int64_t code_bytes = inputs * (kPanel * Code::kBits / 8);
            for (int64_t line = 0; line < kHeadBytes; line += kCacheLine)
                prefetch_pinned(group + kFetchAhead + line);
#pragma GCC unroll 1
            for (int64_t tile = 0; tile < kTiles; tile += kTogether) {
                const uint8_t* codes = group + kHeadBytes + tile * sizeof(Words);
                // Lines are fetched in their order: each pass fetches its part of all tiles.
                const uint8_t* fetched =
                    group + kHeadBytes + code_bytes / kTiles * tile + kFetchAhead;
                __m256i sums[kHalves];
                multiply_steps(sums, low, high, codes, fetched);
                for (int64_t k = kInputs; k < inputs; k += kInputs) {
                    codes += kSteps * kStepBytes;
                    fetched += kSteps * kTogether * sizeof(Words);
                    __m256i more[kHalves];
                    multiply_steps(more, low + k, high + k, codes, fetched);
#pragma GCC unroll 4
                    for (int h = 0; h < kHalves; ++h) sums[h] = _mm256_add_epi32(sums[h], more[h]);
                }
#pragma GCC unroll 4
                for (int h = 0; h < kHalves; ++h)
                    finish(totals, group, tile * kLanes + h * kHalfLanes, sums[h], *x_sum,
                           *x_scale);
            }
            group += kHeadBytes + code_bytes;
            low += inputs;
            high += inputs;
            x_sum += next;
            x_scale += next;
        }
    }

private:
    // The sums of the products of the next kInputs inputs.
    static inline __attribute__((always_inline)) void multiply_steps(__m256i (&sums)[kHalves],
                                                                     const int8_t* low,
                                                                     const int8_t* high,
                                                                     const uint8_t* codes,
                                                                     const uint8_t* fetched) {
        __m256i lower[kHalves], upper[kHalves];
#pragma GCC unroll 4
        for (int s = 0; s < kSteps; ++s) {
#pragma GCC unroll 2
            for (int c = 0; c < kTogether; ++c, fetched += kCacheLine) prefetch_pinned(fetched);
            const __m256i first_low = spread(low), second_low = spread(low + kQuad);
            const __m256i first_high = spread(high), second_high = spread(high + kQuad);
#pragma GCC unroll 4
            for (int h = 0; h < kHalves; ++h) {
                const __m256i words = _mm256_loadu_si256(
                    reinterpret_cast<const __m256i*>(codes + h * sizeof(__m256i)));
                const __m256i first = quad(words), second = quad(_mm256_srli_epi32(words, 4));
                lower[h] = add_product(s ? lower[h] : __m256i{}, first, first_low);
                upper[h] = add_product(s ? upper[h] : __m256i{}, first, first_high);
                lower[h] = add_product(lower[h], second, second_low);
                upper[h] = add_product(upper[h], second, second_high);
            }
            low += Code::kInputs;
            high += Code::kInputs;
            codes += kStepBytes;
        }
#pragma GCC unroll 4
        for (int h = 0; h < kHalves; ++h) sums[h] = combined(lower[h], upper[h]);
    }

    static __m256i spread(const int8_t* x) {
        int32_t quad;
        std::memcpy(&quad, x, sizeof quad);
        return _mm256_set1_epi32(quad);
    }

    static __m256i quad(__m256i words) {
        const __m256i codes = _mm256_and_si256(words, _mm256_set1_epi8(15));
        if constexpr (kCode != kFloat4) return codes;
        const auto* table = reinterpret_cast<const __m128i*>(kFourBitFloats);
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128(table)), codes);
    }

    static inline __attribute__((always_inline)) __m256i add_product(__m256i sum, __m256i codes,
                                                                     __m256i x) {
#if defined(__AVXVNNI__)
        sum = _mm256_dpbusd_avx_epi32(sum, codes, x);
#else
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x));
#endif
        asm volatile("" : "+x"(sum));  // pinned (codes.h)
        return sum;
    }

    static __m256i combined(__m256i lower, __m256i upper) {
#if defined(__AVXVNNI__)
        return _mm256_add_epi32(lower, _mm256_slli_epi32(upper, 8));
#else
        return _mm256_add_epi32(_mm256_madd_epi16(lower, _mm256_set1_epi16(1)),
                                _mm256_madd_epi16(upper, _mm256_set1_epi16(256)));
#endif
    }

    // The products of eight columns with the code of zero.
    static __m256i zero_products(const uint8_t* group, int64_t column, int32_t x_sum) {
        if constexpr (kZeros != kIntZeros) return _mm256_set1_epi32(Code::kZero * x_sum);
        const __m256i zeros = _mm256_cvtepi16_epi32(load_halves(zeros_at(group, column)));
        return _mm256_mullo_epi32(zeros, _mm256_set1_epi32(x_sum));
    }

    // Scales the sums of a group, and adds them to the totals of eight columns.
    static void finish(float* totals, const uint8_t* group, int64_t column, __m256i sum,
                       int32_t x_sum, float x_scale) {
        __m256 own =
            _mm256_cvtepi32_ps(_mm256_sub_epi32(sum, zero_products(group, column, x_sum)));
        if constexpr (kZeros == kFloatZeros)
            own -= _mm256_cvtph_ps(load_halves(zeros_at(group, column))) *
                   static_cast<float>(x_sum);
        auto* total = reinterpret_cast<__m256*>(totals + column);
        *total = *total + own * x_scale * scales(group, column);
    }

    static __m256 scales(const uint8_t* group, int64_t column) {
        const uint8_t* from = group + column * kScaleBytes;
        if constexpr (kScales == kFloat16Scales) return _mm256_cvtph_ps(load_halves(from));
        if constexpr (kScales == kBFloat16Scales)
            return (__m256)_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(from)), 16);
        const __m256i bytes =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
        if constexpr (kScales == kPowerScales) return (__m256)_mm256_slli_epi32(bytes, 23);
        typedef uint32_t Eight __attribute__((vector_size(32)));
        return (__m256)small_floats<__m256, __v8si>((Eight)bytes);
    }

    static const uint8_t* zeros_at(const uint8_t* group, int64_t column) {
        return group + kPanel * kScaleBytes + column * 2;
    }
    static __m128i load_halves(const uint8_t* from) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    }
};

template <int kKind>
using Kind = std::integral_constant<int, kKind>;

// Calls body(kind of scales, kind of zero points) with those of a layout as constants.
template <int kCode, typename Body>
bool with_kinds(const Layout& at, Body body) {
    if constexpr (kCode == kFloat4) {
        const auto none = Kind<kNoZeros>();
        return at.scales == kPowerScales     ? body(Kind<kPowerScales>(), none)
               : at.scales == kByteScales    ? body(Kind<kByteScales>(), none)
               : at.scales == kFloat16Scales ? body(Kind<kFloat16Scales>(), none)
                                             : body(Kind<kBFloat16Scales>(), none);
    } else {
        const auto with_zeros = [&](auto scales) {
            return at.zeros == kIntZeros     ? body(scales, Kind<kIntZeros>())
                   : at.zeros == kFloatZeros ? body(scales, Kind<kFloatZeros>())
                                             : body(scales, Kind<kNoZeros>());
        };
        return at.scales == kFloat16Scales ? with_zeros(Kind<kFloat16Scales>())
                                           : with_zeros(Kind<kBFloat16Scales>());
    }
}
#else
template <int kCode>
constexpr bool kHasByteRow = false;
#endif

// Whether one row is multiplied so by all panels of a weight.
inline bool fits_byte_rows(const Layout& at) {
    return at.rows % kPanel == 0 && at.group % kWholeSteps == 0 && at.filled() % kWholeSteps == 0;
}

// Adds the products of a row of x with a panel to totals of its columns. Returns false, and adds
// nothing, for a panel that is not whole, groups that are not whole steps, or x without bytes.
template <int kCode>
bool multiply_byte_row(float* totals, const QuantizedRows& rows, int64_t row,
                       const uint8_t* panel, int64_t columns, const Layout& at) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (kHasByteRow<kCode>) {
        if (columns != kPanel || !rows.in_bytes) return false;
        return with_kinds<kCode>(at, [&](auto scales, auto zeros) {
            using Product = ByteRow<kCode, scales(), zeros()>;
            if (at.group % Product::kInputs || at.filled() % Product::kInputs) return false;
            Product::multiply(totals, rows, row, panel + at.group_at(0, kPanel), at);
            return true;
        });
    }
#endif
    return false;
}

}  // namespace
