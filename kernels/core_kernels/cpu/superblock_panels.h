// Where the blocks of a weight lie, and the two ways to read them: as they are kept, or opened for many rows of x.
#pragma once

#include "integers.h"
#include "superblock_kinds.h"
#include "superblocks.h"

namespace {

constexpr int64_t kSpan = 8;  // units that are opened at once; the last ones may be fewer

// Where things are in a weight [rows, width].
template <typename Kind>
struct Layout {
    static constexpr int64_t kUnits = Kind::kInputs / kUnit;  // of a block
    int64_t rows, width;

    int64_t blocks() const { return width / Kind::kInputs; }
    int64_t units() const { return width / kUnit; }
    int64_t panels() const { return (rows + kPanel - 1) / kPanel; }
    int64_t columns(int64_t panel) const { return std::min<int64_t>(kPanel, rounded_up(rows, kLanes) - panel * kPanel); }
    int64_t row_bytes() const { return blocks() * Kind::kBytes; }
    int64_t bytes() const { return rounded_up(rows, kLanes) * row_bytes(); }
    int64_t panel_at(int64_t panel) const { return panel * kPanel * row_bytes(); }
};

// Reads a panel as it is kept, for x in this form. kColumns: how many the panel has; 0: as many as it says.
template <typename Kind, Form kOf, int64_t kColumns = 0>
struct Stored {
    using Kept = Kind;
    static constexpr int64_t kGroup = Kind::kGroup, kUnits = Layout<Kind>::kUnits;
    static constexpr bool kHasLeast = Kind::kHasLeast;
    static constexpr Form kForm = kOf;
    static constexpr int kLines = Kind::kBytes / kUnits;  // that a unit of a whole panel takes

    const uint8_t* panel;
    int64_t own_columns;

    int64_t columns() const { return kColumns ? kColumns : own_columns; }
    int64_t span_bytes() const { return kSpan * columns() * Kind::kBytes / kUnits; }
    Place place(int64_t unit, int64_t tile) const {
        const uint8_t* block = panel + unit / kUnits * columns() * Kind::kBytes;
        const uint8_t* words = block + num_halves<Kind>() * columns() * 2;
        return {block + tile * kLanes * 2, words + tile * kLanes * 4, columns()};
    }
    int32_t zero() const { return Kind::kZero; }
    // The words that a step of products takes.
    Words step(int64_t unit, int64_t tile, int i) const {
        return kForm == Form::kPairs ? pair(quad(unit, tile, i / 2), i % 2) : quad(unit, tile, i);
    }
    Words quad(int64_t unit, int64_t tile, int i) const { return Kind::quad(place(unit, tile), unit % kUnits, i); }
    Floats scale(int64_t unit, int64_t tile, int part) const { return Kind::scale(place(unit, tile), unit % kUnits, part); }
    Floats least(int64_t unit, int64_t tile, int part) const {
        if constexpr (kHasLeast) return Kind::least(place(unit, tile), unit % kUnits, part);
        return Floats{};
    }
};

// 256 inputs of a panel, opened: scales as floats, codes as bytes, or as pairs of sixteen bits with their zero taken off.
template <int64_t kInGroup, bool kLeast, Form kOf>
struct Opened {
    static constexpr int64_t kGroup = kInGroup;
    static constexpr Form kForm = kOf;
    static constexpr bool kHasLeast = kLeast, kPairs = kForm == Form::kPairs;
    static constexpr int kLines = 0, kParts = kUnit / kInGroup;
    static constexpr int64_t kSteps = kUnit / kAtOnce<kForm>;  // of a unit

    Buffer<uint32_t> codes = make_buffer<uint32_t>(kSpan * kSteps * kPanel);
    Buffer<float> scales = make_buffer<float>(kSpan * kParts * kPanel);
    Buffer<float> leasts = make_buffer<float>(kLeast ? kSpan * kParts * kPanel : 1);
    int64_t num_columns = 0, first = 0;
    int32_t own_zero = 0;

    int64_t columns() const { return num_columns; }

    // Opens `units` units from `begin` on.
    template <typename Reader>
    void open(const Reader& reader, int64_t begin, int64_t units) {
        num_columns = reader.columns();
        first = begin;
        own_zero = kPairs ? 0 : reader.zero();
        const Shorts zero = Shorts{} + static_cast<uint16_t>(reader.zero());
        for (int64_t unit = begin; unit < begin + units; ++unit)
            for (int64_t tile = 0; tile * kLanes < num_columns; ++tile) {
                for (int part = 0; part < kParts; ++part) {
                    store(&scales[scale_at(unit, tile, part)], reader.scale(unit, tile, part));
                    if (kLeast) store(&leasts[scale_at(unit, tile, part)], reader.least(unit, tile, part));
                }
#pragma GCC unroll 8
                for (int q = 0; q < kQuads; ++q) {
                    const Words words = reader.quad(unit, tile, q);
                    if constexpr (kPairs) {
                        const Shorts halves[2] = {(Shorts)pair(words, 0) - zero, (Shorts)pair(words, 1) - zero};
                        std::memcpy(&codes[code_at(unit, tile, 2 * q)], &halves[0], sizeof halves[0]);
                        std::memcpy(&codes[code_at(unit, tile, 2 * q + 1)], &halves[1], sizeof halves[1]);
                    } else {
                        std::memcpy(&codes[code_at(unit, tile, q)], &words, sizeof words);
                    }
                }
            }
    }
    int32_t zero() const { return own_zero; }
    Words step(int64_t unit, int64_t tile, int i) const { return load_words(&codes[code_at(unit, tile, i)]); }
    Floats scale(int64_t unit, int64_t tile, int part) const { return load(&scales[scale_at(unit, tile, part)]); }
    Floats least(int64_t unit, int64_t tile, int part) const {
        return kLeast ? load(&leasts[scale_at(unit, tile, part)]) : Floats{};
    }

private:
    typedef uint16_t Shorts __attribute__((vector_size(kLanes * 4)));
    int64_t code_at(int64_t unit, int64_t tile, int i) const { return ((unit - first) * kSteps + i) * kPanel + tile * kLanes; }
    int64_t scale_at(int64_t unit, int64_t tile, int part) const {
        return ((unit - first) * kParts + part) * kPanel + tile * kLanes;
    }
};

}  // namespace
