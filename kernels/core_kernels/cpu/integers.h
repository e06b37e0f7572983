// Where integers and scales lie in a weight, and rows of x as integers.
#pragma once

#include <algorithm>
#include <memory>

#include "codes.h"
#include "parallel.h"
#include "quantized.h"

namespace {

constexpr int64_t kParallelProducts = 1 << 17;  // below this a second thread costs more than it saves
constexpr int64_t kLargest = 32639;             // of sixteen bits whose both bytes are signed

inline int64_t rounded_up(int64_t number, int64_t to) { return (number + to - 1) / to * to; }

// Where things are in a weight [rows, width].
struct Layout {
    int64_t rows, width, bits, group;
    bool has_halves;  // scales are float16 instead of bfloat16

    int64_t filled() const { return rounded_up(width, kInputsTogether); }
    int64_t groups() const { return (width + group - 1) / group; }
    int64_t inputs(int64_t index) const { return std::min(group, filled() - index * group); }
    int64_t panels() const { return (rows + kPanel - 1) / kPanel; }
    int64_t columns(int64_t panel) const { return std::min<int64_t>(kPanel, rounded_up(rows, kLanes) - panel * kPanel); }
    int64_t row_bytes() const { return groups() * sizeof(BFloat16) + filled() * bits / 8; }
    int64_t bytes() const { return rounded_up(rows, kLanes) * row_bytes(); }
    int64_t panel_at(int64_t panel) const { return panel * kPanel * row_bytes(); }
    // Of a panel with so many columns.
    int64_t group_at(int64_t index, int64_t columns) const {
        return columns * index * (static_cast<int64_t>(sizeof(BFloat16)) + group * bits / 8);
    }
};

// Scales of a panel's columns, of either type.
inline Floats load_scales(const uint8_t* from, const Layout& at) {
    return at.has_halves ? load(reinterpret_cast<const Float16*>(from)) : load(reinterpret_cast<const BFloat16*>(from));
}

inline float scale_at(const uint8_t* from, const Layout& at) {
    return at.has_halves ? widened(*reinterpret_cast<const Float16*>(from)) : widened(*reinterpret_cast<const BFloat16*>(from));
}

template <typename T>
void read_row(float* to, const T* from, int64_t count, int64_t stride) {
    int64_t at = 0;
    if (stride == 1)
        for (; at + kLanes <= count; at += kLanes) store(to + at, load(from + at));
    for (; at < count; ++at) to[at] = widened(from[at * stride]);
}

// Rows of x as integers of sixteen bits: in the order of pairs, or in two bytes each where bytes are multiplied, which stand
// for 256 * high + low.
struct Rows {
    int64_t stride, groups;
    std::unique_ptr<int16_t[]> pairs;
    std::unique_ptr<int8_t[]> high, low;
    std::unique_ptr<float[]> scales;   // [rows, groups]
    std::unique_ptr<int32_t[]> zeros;  // [rows, groups]: takes off what the integers that mean zero add to a sum
};

typedef int8_t Chars __attribute__((vector_size(kLanes)));

// Returns the power of two by which a group's numbers are divided; not a number where one of them is none.
inline float power_for(const float* numbers, int64_t count) {
    uint32_t most = 0;
    for (int64_t i = 0; i < count; ++i) {
        uint32_t bits;
        std::memcpy(&bits, numbers + i, sizeof bits);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    float power;
    std::memcpy(&power, &most, sizeof power);
    if (most >= 0x7f800000) return __builtin_nanf("");
    power = std::max(power / kLargest, 0x1p-100f);
    std::memcpy(&most, &power, sizeof most);
    most = (most + 0x007fffff) & 0x7f800000;
    std::memcpy(&power, &most, sizeof power);
    return power;
}

// Makes integers of one row's numbers, which are filled up with zeros.
inline void round_row(Rows& rows, int64_t row, const float* numbers, int32_t* integers, Layout at) {
    const float to_integer = 0x1.8p23f;  // a sum this large has no fraction bits left
    for (int64_t g = 0; g < rows.groups; ++g) {
        const int64_t first = g * at.group, end = first + at.inputs(g);
        const float power = power_for(numbers + first, end - first), inverse = power == power ? 1 / power : 0;
        int32_t sum = 0;
        for (int64_t k = first; k < end; ++k) {
            const float shifted = numbers[k] * inverse + to_integer;
            int32_t bits;
            std::memcpy(&bits, &shifted, sizeof bits);
            integers[k] = inverse == 0 ? 0 : bits - 0x4b400000;
            sum += integers[k];
        }
        rows.scales[row * rows.groups + g] = power;
        rows.zeros[row * rows.groups + g] = -sum * (1 << (at.bits - 1));
    }
    for (int64_t k = 0; k < rows.stride; k += kLanes) {
        Ints own;
        std::memcpy(&own, integers + k, sizeof own);
        if constexpr (!kMultipliesBytes) {
            own = __builtin_shuffle(own, Ints{0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15});
            const Halves halves = __builtin_convertvector((Words)own, Halves);
            std::memcpy(rows.pairs.get() + row * rows.stride + k, &halves, sizeof halves);
            continue;
        }
        const Ints high = (own + 128) >> 8;
        const Chars upper = __builtin_convertvector(high, Chars), lower = __builtin_convertvector(own - (high << 8), Chars);
        std::memcpy(rows.high.get() + row * rows.stride + k, &upper, sizeof upper);
        std::memcpy(rows.low.get() + row * rows.stride + k, &lower, sizeof lower);
    }
}

template <typename T>
Rows rounded(const Product& p, Layout at) {
    const int64_t stride = rounded_up(p.in, kLanes), count = p.rows * at.groups();
    // Tile registers read whole ones, also behind the last row.
    const int64_t size = p.rows * stride + (kTileRegisters ? kTileRows * stride + kTileBytes : 0);
    Rows rows = {stride, at.groups(), nullptr, nullptr, nullptr,
                 std::unique_ptr<float[]>(new float[count]), std::unique_ptr<int32_t[]>(new int32_t[count])};
    if (kMultipliesBytes) {
        rows.high.reset(new int8_t[size]);
        rows.low.reset(new int8_t[size]);
    } else {
        rows.pairs.reset(new int16_t[size]);
    }
    share_out(p.rows, p.rows * stride >= kParallelProducts, [&](Pieces& pieces) {
        std::unique_ptr<float[]> numbers(new float[stride]());
        std::unique_ptr<int32_t[]> integers(new int32_t[stride]());
        for (int64_t row; pieces.next(&row);) {
            read_row(numbers.get(), static_cast<const T*>(p.x) + row * p.x_stride, p.in, 1);
            round_row(rows, row, numbers.get(), integers.get(), at);
        }
    });
    return rows;
}

}  // namespace
