// Where the blocks of a weight lie, and the two ways to read them: as they are kept, or opened for many rows of x.
#pragma once

#include "integers.h"
#include "superblock_kinds.h"
#include "superblocks.h"

namespace {

constexpr int64_t kSpan = 8;  // units of which a row of x has a scale; the last ones may be fewer

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

// Reads a panel as it is kept.
template <typename Kind>
struct Stored {
    static constexpr int64_t kGroup = Kind::kGroup, kUnits = Layout<Kind>::kUnits;
    static constexpr bool kHasLeast = Kind::kHasLeast;
    static constexpr int32_t kZero = Kind::kZero;
    static constexpr bool kReadsBytes = kMultipliesBytes;
    static constexpr int kLines = Kind::kBytes / kUnits;  // that a unit of a whole panel takes

    const uint8_t* panel;
    int64_t columns;

    Place place(int64_t unit, int64_t tile) const {
        const uint8_t* block = panel + unit / kUnits * columns * Kind::kBytes;
        const uint8_t* words = block + num_halves<Kind>() * columns * 2;
        return {block + tile * kLanes * 2, words + tile * kLanes * 4, columns};
    }
    int32_t zero() const { return kZero; }
    Words pairs(int64_t unit, int64_t tile, int i) const { return pair(quad(unit, tile, i / 2), i % 2); }
    Words quad(int64_t unit, int64_t tile, int i) const { return Kind::quad(place(unit, tile), unit % kUnits, i); }
    Floats scale(int64_t unit, int64_t tile, int part) const { return Kind::scale(place(unit, tile), unit % kUnits, part); }
    Floats least(int64_t unit, int64_t tile, int part) const {
        if constexpr (kHasLeast) return Kind::least(place(unit, tile), unit % kUnits, part);
        return Floats{};
    }
};

// 256 inputs of a panel, opened: codes as pairs of sixteen bits with their zero taken off, scales as floats.
template <int64_t kInGroup, bool kLeast>
struct Opened {
    static constexpr int64_t kGroup = kInGroup;
    static constexpr bool kHasLeast = kLeast, kReadsBytes = false;
    static constexpr int kLines = 0, kParts = kUnit / kInGroup;
    static constexpr int64_t kPairs = kQuads * 2;  // of a unit

    Buffer<uint32_t> codes = make_buffer<uint32_t>(kSpan * kPairs * kPanel);
    Buffer<float> scales = make_buffer<float>(kSpan * kParts * kPanel);
    Buffer<float> leasts = make_buffer<float>(kLeast ? kSpan * kParts * kPanel : 1);
    int64_t columns = 0, first = 0;

    // Opens `units` units from `begin` on.
    template <typename Reader>
    void open(const Reader& reader, int64_t begin, int64_t units) {
        columns = reader.columns;
        first = begin;
        const Shorts zero = Shorts{} + static_cast<uint16_t>(reader.zero());
        for (int64_t unit = begin; unit < begin + units; ++unit)
            for (int64_t tile = 0; tile * kLanes < columns; ++tile) {
                for (int part = 0; part < kParts; ++part) {
                    store(&scales[scale_at(unit, tile, part)], reader.scale(unit, tile, part));
                    if (kLeast) store(&leasts[scale_at(unit, tile, part)], reader.least(unit, tile, part));
                }
#pragma GCC unroll 8
                for (int q = 0; q < kQuads; ++q) {
                    const Words words = reader.quad(unit, tile, q);
                    const Shorts halves[2] = {(Shorts)pair(words, 0) - zero, (Shorts)pair(words, 1) - zero};
                    std::memcpy(&codes[code_at(unit, tile, 2 * q)], &halves[0], sizeof halves[0]);
                    std::memcpy(&codes[code_at(unit, tile, 2 * q + 1)], &halves[1], sizeof halves[1]);
                }
            }
    }
    int32_t zero() const { return 0; }
    Words pairs(int64_t unit, int64_t tile, int i) const { return load_words(&codes[code_at(unit, tile, i)]); }
    Floats scale(int64_t unit, int64_t tile, int part) const { return load(&scales[scale_at(unit, tile, part)]); }
    Floats least(int64_t unit, int64_t tile, int part) const {
        return kLeast ? load(&leasts[scale_at(unit, tile, part)]) : Floats{};
    }

private:
    typedef uint16_t Shorts __attribute__((vector_size(kLanes * 4)));
    int64_t code_at(int64_t unit, int64_t tile, int i) const { return ((unit - first) * kPairs + i) * columns + tile * kLanes; }
    int64_t scale_at(int64_t unit, int64_t tile, int part) const {
        return ((unit - first) * kParts + part) * columns + tile * kLanes;
    }
};

}  // namespace
