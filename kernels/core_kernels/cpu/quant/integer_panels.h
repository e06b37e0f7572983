// Layout of integer weights: codes, scales and zero points.
//
// A panel of 64 output rows (the last one: as many tiles of sixteen as are left) stores the row
// factors, if any. Then, for each group of inputs, it stores the scales of its rows, their zero
// points, if any, and their codes step after step.
#pragma once

#include "cpu/quant/quantized_rows.h"
#include "cpu/quant/quantized.h"

namespace {

constexpr int64_t kLargestGroup = 256;

struct Layout {
    int64_t rows, width, group, bits;
    int64_t scales;  // ScaleKind
    int64_t zeros;   // ZeroKind: the unsigned code of zero, or its distance from the middle code

    Layout(int64_t rows, int64_t width, IntegerFormat format)
        : rows(rows),
          width(width),
          group(format.group),
          bits(format.code == kInt8 ? 8 : 4),
          scales(format.scales),
          zeros(format.zeros) {}

    int64_t filled() const { return rounded_up(width, kInputsTogether); }
    int64_t groups() const { return (width + group - 1) / group; }
    int64_t inputs(int64_t index) const { return std::min(group, filled() - index * group); }
    int64_t panels() const { return (rows + kPanel - 1) / kPanel; }
    int64_t columns(int64_t panel) const {
        return std::min<int64_t>(kPanel, rounded_up(rows, kLanes) - panel * kPanel);
    }
    bool has_factors() const { return scales == kByteScales; }
    int64_t factor_bytes() const { return has_factors() ? sizeof(float) : 0; }  // per column
    int64_t scale_bytes() const { return scales >= kByteScales ? 1 : 2; }
    int64_t head_bytes() const { return scale_bytes() + (zeros ? 2 : 0); }  // per column and group
    int64_t row_bytes() const {
        return factor_bytes() + groups() * head_bytes() + filled() * bits / 8;
    }
    int64_t bytes() const { return rounded_up(rows, kLanes) * row_bytes(); }
    int64_t panel_at(int64_t panel) const { return panel * kPanel * row_bytes(); }
    // In a panel with this number of columns.
    int64_t group_at(int64_t index, int64_t columns) const {
        return columns * (factor_bytes() + index * (head_bytes() + group * bits / 8));
    }
    int64_t codes_at(int64_t columns) const {
        return columns * head_bytes();
    }  // from the start of a group
};

// Decodes E4M3 numbers.
template <typename Numbers, typename Integers, typename Codes>
inline Numbers small_floats(Codes codes) {
    const Codes own = codes & 0x7f;
    const Numbers small = convert<Numbers>((Integers)own) * 0x1p-9f;
    Codes found = select(own < 8, (Codes)small, (own << 20) + (120u << 23));
    found = select(own == 0x7f, Codes{} + 0x7fc00000, found);
    return (Numbers)(found | (codes & 0x80) << 24);
}

// Sixteen E4M3 scales. Not inlined: inlining slows down the other kinds of scales, which are more
// frequent.
__attribute__((noinline)) inline Floats load_small(const uint8_t* from) {
    return small_floats<Floats, Ints>(load_bytes(from));
}

// Loads the scales of a panel's columns. Byte scales exist for FP4 only: checking for them with
// other codes costs registers (int4 with four rows took 1.4 times as long).
template <int kCode>
inline Floats load_scales(const uint8_t* group, int64_t tile, const Layout& at) {
    const uint8_t* from = group + tile * kLanes * at.scale_bytes();
    if constexpr (kCode == kFloat4)
        if (at.scales >= kByteScales)
            return at.scales == kPowerScales ? load_powers(from) : load_small(from);
    return at.scales == kFloat16Scales ? load(reinterpret_cast<const Float16*>(from))
                                       : load(reinterpret_cast<const BFloat16*>(from));
}

// Loads the row factors of a tile's columns.
inline Floats load_factors(const uint8_t* panel, int64_t tile) {
    return load_vector<Floats>(panel + tile * sizeof(Floats));
}

// Loads the unsigned codes of zero; the middle code if zero points are not integers.
template <int kCode>
inline Ints load_zeros(const uint8_t* group, int64_t tile, int64_t columns, const Layout& at) {
    if (at.zeros != kIntZeros) return Ints{} + Codes<kCode>::kZero;
    return (Ints)(load_bits(group + (columns + tile * kLanes) * 2) << 16) >> 16;
}

// Loads float zero points: distances from the middle code.
inline Floats load_float_zeros(const uint8_t* group, int64_t tile, int64_t columns) {
    return load(reinterpret_cast<const Float16*>(group + (columns + tile * kLanes) * 2));
}

template <int kCode>
inline float zero_at(const uint8_t* group, int64_t column, int64_t columns, const Layout& at) {
    if (!at.zeros) return Codes<kCode>::kZero;
    const uint8_t* from = group + (columns + column) * 2;
    if (at.zeros == kFloatZeros)
        return Codes<kCode>::kZero + widened(*reinterpret_cast<const Float16*>(from));
    int16_t zero;
    std::memcpy(&zero, from, sizeof zero);
    return zero;
}

// The span of x of a group of inputs; 8-bit rows have one scale.
inline int64_t span_of(int64_t group, const QuantizedRows& rows) {
    return rows.bits == 8 ? 0 : group;
}

// Scales a group's integer sum and adds it to a total, for one tile of columns.
template <int kCode>
class GroupScale {
public:
    GroupScale(const uint8_t* group, int64_t tile, int64_t columns, const Layout& at)
        : scale_(load_scales<kCode>(group, tile, at)),
          has_zeros_(at.zeros == kFloatZeros),
          zeros_(has_zeros_ ? load_float_zeros(group, tile, columns) : Floats{}) {}

    Floats added(Floats total, Ints sum, int32_t x_sum, float x_scale) const {
        Floats own = convert<Floats>(sum);
        if (has_zeros_) own -= zeros_ * static_cast<float>(x_sum);
        return total + own * x_scale * scale_;
    }

private:
    const Floats scale_;
    const bool has_zeros_;
    const Floats zeros_;
};

// Multiplies totals by the row factors of a panel's columns, from a tile.
template <int C>
void multiply_by_factors(Floats (*totals)[C], int64_t rows, const uint8_t* panel, int64_t tile,
                         int64_t tiles) {
    for (int64_t c = 0; c < std::min<int64_t>(C, tiles - tile); ++c) {
        const Floats factors = load_factors(panel, tile + c);
        for (int64_t r = 0; r < rows; ++r) totals[r][c] *= factors;
    }
}

}  // namespace
