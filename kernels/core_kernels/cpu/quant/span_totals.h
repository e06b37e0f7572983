// From the products of a span of 256 inputs to the totals of rows and tiles.
#pragma once

#include "cpu/quant/superblock_panels.h"

namespace {

// The sum of the numbers of x that share a scale of the weight; kParts of them make a unit.
template <int kBits, int kParts>
inline int32_t sum_of(const QuantizedRows& rows, int64_t row, int64_t part) {
    const auto sum = [&](int64_t of) { return rows.sums[of * rows.count + row]; };
    if constexpr (kBits == 8 || kParts == 2) return sum(part);
    return sum(part * 2) + sum(part * 2 + 1);
}

// The same times the scale of x, if that is one of these numbers only.
template <int kBits, int kParts>
inline float scaled_sum(const QuantizedRows& rows, int64_t row, int64_t part) {
    const auto sum = static_cast<float>(sum_of<kBits, kParts>(rows, row, part));
    return kBits == 8 ? sum * rows.scales[part * rows.count + row] : sum;
}

// Adds what was found in a span to the totals: times the factors of the block, minus its minima
// times the sums of x.
template <int kBits, typename Reader, int R, int C>
inline __attribute__((always_inline)) void finish_span(Floats (&totals)[R][C],
                                                       const Floats (&found)[R][C],
                                                       const QuantizedRows& rows, int64_t row,
                                                       const Reader& reader, int64_t span,
                                                       int64_t tile) {
    constexpr int parts = kUnit / Reader::kGroup;
    const int64_t first = span * kSpan, end = std::min(rows.layout.width / kUnit, first + kSpan);
    Floats minima[R][C];
    std::memset(minima, 0, sizeof minima);
    if constexpr (Reader::kHasMin)
        for (int64_t part = first * parts; part < end * parts; ++part)
            for (int r = 0; r < R; ++r) {
                const float sum = scaled_sum<kBits, parts>(rows, row + r, part);
                for (int c = 0; c < C; ++c)
                    minima[r][c] += reader.minimum(part / parts, tile + c, part % parts) * sum;
            }
    for (int c = 0; c < C; ++c)
        for (int r = 0; r < R; ++r) {
            Floats sum = found[r][c];
            if constexpr (Reader::kHasFactors) sum *= reader.factor(first, tile + c, 0);
            if constexpr (Reader::kHasMin && Reader::kHasFactors)
                sum -= minima[r][c] * reader.factor(first, tile + c, 1);
            else if constexpr (Reader::kHasMin)
                sum -= minima[r][c];
            totals[r][c] += kBits == 8 ? sum : sum * rows.scales[span * rows.count + row + r];
        }
}

}  // namespace
