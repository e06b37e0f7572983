// One row of x in bytes times a packed panel of blocks with integer scales, where products of bytes
// are added to sums of 16 bits (AVX2, AVX-512 without VNNI).
//
// Units that share their words are multiplied together, and the integer scale of a group is applied
// where sums of 16 bits are added to sums of 32. All these sums are exact: the result is that of
// other rows and blocks, bit by bit.
#pragma once

#include "cpu/quant/superblock_panels.h"

namespace {

// Whether spans of a kind, with a number of rows of x, are multiplied so. With registers of a whole
// tile it pays where words are shared by more than two units.
template <typename Kind, IntegerLayout kLayout, int kNumRows>
constexpr bool kHasByteSpans = kHasFactors<Kind> && kDelaysFactors &&
                               kLayout == IntegerLayout::kByte && kNumRows == 1 &&
                               (!kWholePanels || Kind::kShared > 2);
// Tiles that are multiplied together: their sums take eight registers.
template <typename Kind>
constexpr int kByteTiles = kRegister / 8 / static_cast<int>(Kind::kShared);

// One row of x times the C tiles from `tile`, for one span.
template <typename Kind, int C>
class ByteSpan {
    static_assert(Kind::kInputs == kSpan * kUnit);
    static constexpr int kShared = Kind::kShared, kParts = kUnit / Kind::kGroup,
                         kSteps = kQuads / kParts,
                         // Sums start from the products with zero, so they stay within this.
                         kLargest = std::max<int>(Kind::kZero, Kind::kMaxCode - Kind::kZero),
                         kTogether = std::min(kSteps, pairs_in_half(kLargest)),
                         kScaleWords = kSpan * kParts / 4;

public:
    template <typename Reader>
    ByteSpan(const QuantizedRows& rows, int64_t row, const Reader& reader, int64_t span,
             int64_t tile)
        : x_(&rows.low[(span * kSpan * rows.count + row) * kUnit]),
          x_scales_(&rows.scales[span * kSpan * kParts * rows.count + row]),
          count_(rows.count) {
        for (int c = 0; c < C; ++c) {
            views_[c] = reader.view(span * kSpan, tile + c);
            for (int at = 0; at < kScaleWords; ++at) scales_[c][at] = Kind::scales(views_[c], at);
        }
    }

    // Adds the products, times their scales. Prefetches as much as it reads.
    void add(Floats (&found)[C], const uint8_t* fetched) const {
        for (int64_t units = 0; units < kSpan / kShared; ++units, fetched += kLines * kCacheLine) {
            Ints sums[kParts][kShared][C];
#pragma GCC unroll 2
            for (int part = 0; part < kParts; ++part)
                multiply_part(sums[part], units, part, fetched);
#pragma GCC unroll 4
            for (int u = 0; u < kShared; ++u)
#pragma GCC unroll 2
                for (int part = 0; part < kParts; ++part)
#pragma GCC unroll 4
                    for (int c = 0; c < C; ++c)
                        found[c] += convert<Floats>(sums[part][u][c]) *
                                    x_scales_[scale_at(units, u, part) * count_];
        }
    }

    // Cache lines of the tiles: of a span, and of units that share words.
    static constexpr int64_t kSpanLines = Kind::kBytes * C / kTiles,
                             kLines = kSpanLines * kShared / kSpan;

private:
    // Multiplies the same part of units that share words, and applies its integer scales.
    void multiply_part(Ints (&sums)[kShared][C], int64_t units, int part,
                       const uint8_t* fetched) const {
#pragma GCC unroll 4
        for (int begin = 0; begin < kSteps; begin += kTogether) {
            Words halves[kShared][C];
            if constexpr (Kind::kZero != 0) start_from_zero(halves, units, part * kSteps + begin);
#pragma GCC unroll 8
            for (int step = begin; step < begin + kTogether; ++step) {
                const int at = part * kSteps + step;
#pragma GCC unroll 8
                for (int64_t line = at * kLines / kQuads; line < (at + 1) * kLines / kQuads; ++line)
                    prefetch_pinned(fetched + line * kCacheLine);
#pragma GCC unroll 4
                for (int c = 0; c < C; ++c) {
                    Words own[kShared];
                    Kind::quads(views_[c], units, part * kSteps + step, own);
#pragma GCC unroll 4
                    for (int u = 0; u < kShared; ++u) {
                        const Words products =
                            multiply_bytes(x(units, u, part * kSteps + step), own[u]);
                        halves[u][c] = Kind::kZero == 0 && step == begin
                                           ? products
                                           : add_halves(halves[u][c], products);
                    }
                }
            }
#pragma GCC unroll 4
            for (int u = 0; u < kShared; ++u) {
                const int64_t at = scale_at(units, u, part);
#pragma GCC unroll 4
                for (int c = 0; c < C; ++c) {
                    const Words scale = byte_in_halves(scales_[c][at / 4], at % 4);
                    sums[u][c] = add_pairs(begin == 0 ? Ints{} : sums[u][c], halves[u][c], scale);
                }
            }
        }
    }

    // Starts sums from the products with the code of zero, subtracted.
    void start_from_zero(Words (&halves)[kShared][C], int64_t units, int first) const {
        const Words zero = Words{} + static_cast<int32_t>(Kind::kZero * 0x01010101);
#pragma GCC unroll 4
        for (int u = 0; u < kShared; ++u) {
            Words sum = {};
#pragma GCC unroll 8
            for (int step = first; step < first + kTogether; ++step)
                sum = subtract_each_half(sum, multiply_bytes(x(units, u, step), zero));
            for (int c = 0; c < C; ++c) halves[u][c] = sum;
        }
    }

    Words x(int64_t units, int unit, int step) const {
        return spread_word(x_ + (units * kShared + unit) * count_ * kUnit + step * kQuad);
    }
    static int64_t scale_at(int64_t units, int unit, int part) {
        return (units * kShared + unit) * kParts + part;
    }

    const int8_t* x_;
    const float* x_scales_;
    const int64_t count_;
    BlockView views_[C];
    Words scales_[C][kScaleWords];
};

}  // namespace
