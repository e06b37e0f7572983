// Panels of GGUF blocks, and two readers: packed, or unpacked for many rows of x.
#pragma once

#include "cpu/quant/quantized_rows.h"
#include "cpu/quant/superblock_kinds.h"
#include "cpu/quant/superblocks.h"

namespace {

constexpr int64_t kSpan = 8;  // units that are unpacked at once; the last span may have fewer

// Layout of a weight [rows, width].
template <typename Kind>
struct Layout {
    static constexpr int64_t kUnits = Kind::kInputs / kUnit;  // per block
    int64_t rows, width;

    int64_t blocks() const { return width / Kind::kInputs; }
    int64_t units() const { return width / kUnit; }
    int64_t panels() const { return (rows + kPanel - 1) / kPanel; }
    int64_t columns(int64_t panel) const {
        return std::min<int64_t>(kPanel, rounded_up(rows, kLanes) - panel * kPanel);
    }
    int64_t row_bytes() const { return blocks() * Kind::kBytes; }
    int64_t bytes() const { return rounded_up(rows, kLanes) * row_bytes(); }
    int64_t panel_at(int64_t panel) const { return panel * kPanel * row_bytes(); }
};

// Reads a packed panel, for this layout of x. kColumns: number of columns; 0: known at run time.
template <typename Kind, IntegerLayout kOf, int64_t kColumns = 0>
struct PackedPanel {
    using KindType = Kind;
    static constexpr int64_t kGroup = Kind::kGroup, kUnits = Layout<Kind>::kUnits;
    static constexpr bool kHasMin = Kind::kHasMin,
                          kHasFactors = ::kHasFactors<Kind> && kDelaysFactors;
    static constexpr IntegerLayout kLayout = kOf;
    static constexpr int kLines = Kind::kBytes / kUnits;  // cache lines per unit of a whole panel
    static constexpr int kMaxCode = Kind::kMaxCode;

    const uint8_t* panel;
    int64_t own_columns;

    int64_t columns() const { return kColumns ? kColumns : own_columns; }
    int64_t span_bytes() const { return kSpan * columns() * Kind::kBytes / kUnits; }
    BlockView view(int64_t unit, int64_t tile) const {
        const uint8_t* block = panel + unit / kUnits * columns() * Kind::kBytes;
        const uint8_t* words = block + num_halves<Kind>() * columns() * 2;
        return {block + tile * kLanes * 2, words + tile * kLanes * 4, columns()};
    }
    int32_t zero() const {
        return kLayout == IntegerLayout::kByte && multiplies_signed(kMaxCode) ? 0 : Kind::kZero;
    }
    // The words of one multiplication step.
    Words step(int64_t unit, int64_t tile, int i) const {
        return kLayout == IntegerLayout::kPairs ? pair(quad(unit, tile, i / 2), i % 2)
                                                : quad(unit, tile, i);
    }
    Words quad(int64_t unit, int64_t tile, int i) const {
        return Kind::quad(view(unit, tile), unit % kUnits, i);
    }
    // The scale or minimum of a part of a unit, without the factor of the block if that is delayed.
    Floats scale(int64_t unit, int64_t tile, int part) const {
        const BlockView block = view(unit, tile);
        if constexpr (::kHasFactors<Kind>) {
            const int64_t at = unit % kUnits * (kUnit / kGroup) + part;
            const Floats own = byte_of(Kind::scales(block, at / 4), at % 4);
            return kDelaysFactors ? own : own * block.half(0);
        } else {
            return Kind::scale(block);
        }
    }
    Floats minimum(int64_t unit, int64_t tile, int part) const {
        const BlockView block = view(unit, tile);
        if constexpr (kHasMin && ::kHasFactors<Kind>) {
            const int64_t at = unit % kUnits * (kUnit / kGroup) + part;
            const Floats own = byte_of(Kind::minima(block, at / 4), at % 4);
            return kDelaysFactors ? own : own * block.half(1);
        } else if constexpr (kHasMin) {
            return Kind::minimum(block);
        }
        return Floats{};
    }
    // The delayed factors of a block: of its scales (0) or of its minima (1).
    Floats factor(int64_t unit, int64_t tile, int of) const {
        return kHasFactors ? view(unit, tile).half(of) : spread(1);
    }
};

// 256 inputs of a panel, unpacked: scales as floats, codes as bytes, or as 16-bit pairs with the
// zero point subtracted. Kinds that are equal once unpacked share the code that multiplies them.
template <IntegerLayout kOf, int64_t kOfGroup, bool kMin, bool kFactors, int kMax>
struct UnpackedPanel {
    static constexpr int64_t kGroup = kOfGroup;
    static constexpr IntegerLayout kLayout = kOf;
    static constexpr bool kHasMin = kMin, kHasFactors = kFactors,
                          kPairs = kLayout == IntegerLayout::kPairs;
    static constexpr int kLines = 0, kParts = kUnit / kGroup, kMaxCode = kMax;
    static constexpr int64_t kSteps = kUnit / kAtOnce<kLayout>;  // per unit

    Buffer<uint32_t> codes = make_buffer<uint32_t>(kSpan * kSteps * kPanel);
    Buffer<float> scales = make_buffer<float>(kSpan * kParts * kPanel);
    Buffer<float> minima = make_buffer<float>(kHasMin ? kSpan * kParts * kPanel : 1);
    Buffer<float> factors = make_buffer<float>(2 * kPanel);  // a span is a block that has factors
    int64_t num_columns = 0, first = 0;
    int32_t own_zero = 0;

    int64_t columns() const { return num_columns; }

    // Unpacks `units` units from `begin`.
    template <typename Reader>
    void unpack_span(const Reader& reader, int64_t begin, int64_t units) {
        num_columns = reader.columns();
        first = begin;
        own_zero = kPairs ? 0 : reader.zero();
        if constexpr (kHasFactors)
            for (int64_t tile = 0; tile * kLanes < num_columns; ++tile)
                for (int of = 0; of <= kHasMin; ++of)
                    store(&factors[of * kPanel + tile * kLanes], reader.factor(begin, tile, of));
        for (int64_t unit = begin; unit < begin + units; ++unit)
            for (int64_t tile = 0; tile * kLanes < num_columns; ++tile) {
                for (int part = 0; part < kParts; ++part) {
                    store(&scales[scale_at(unit, tile, part)], reader.scale(unit, tile, part));
                    if (kHasMin)
                        store(&minima[scale_at(unit, tile, part)],
                              reader.minimum(unit, tile, part));
                }
#pragma GCC unroll 8
                for (int q = 0; q < kQuads; ++q) {
                    const Words words = reader.quad(unit, tile, q);
                    if constexpr (kPairs) {
                        for (int i = 0; i < 2; ++i)
                            store_vector(&codes[code_at(unit, tile, 2 * q + i)],
                                         subtract_halves(pair(words, i), reader.zero()));
                    } else {
                        store_vector(&codes[code_at(unit, tile, q)], words);
                    }
                }
            }
    }
    int32_t zero() const { return own_zero; }
    Words step(int64_t unit, int64_t tile, int i) const {
        return load_words(&codes[code_at(unit, tile, i)]);
    }
    Floats scale(int64_t unit, int64_t tile, int part) const {
        return load(&scales[scale_at(unit, tile, part)]);
    }
    Floats minimum(int64_t unit, int64_t tile, int part) const {
        return kHasMin ? load(&minima[scale_at(unit, tile, part)]) : Floats{};
    }
    Floats factor(int64_t, int64_t tile, int of) const {
        return load(&factors[of * kPanel + tile * kLanes]);
    }

private:
    int64_t code_at(int64_t unit, int64_t tile, int i) const {
        return ((unit - first) * kSteps + i) * kPanel + tile * kLanes;
    }
    int64_t scale_at(int64_t unit, int64_t tile, int part) const {
        return ((unit - first) * kParts + part) * kPanel + tile * kLanes;
    }
};

// The unpacked panel of a kind. Only sums of 16 bits depend on its largest code.
template <typename Kind, IntegerLayout kOf>
using UnpackedPanelOf =
    UnpackedPanel<kOf, Kind::kGroup, Kind::kHasMin, ::kHasFactors<Kind> && kDelaysFactors,
                  kOf == IntegerLayout::kByte && kMultipliesSmallBytes && !kAddsBytes
                      ? Kind::kMaxCode
                      : 255>;

// Prefetches a line between the previous and the next products of these sums.
inline __attribute__((always_inline)) void prefetch_between(const uint8_t* line,
                                                            Ints (&sums)[kTiles]) {
#if defined(__AVX512F__)
    asm volatile("prefetcht1 %4"
                 : "+v"(sums[0]), "+v"(sums[1]), "+v"(sums[2]), "+v"(sums[3])
                 : "m"(*line));
#else
    __builtin_prefetch(line, 0, 2);
    (void)sums;
#endif
}

}  // namespace
