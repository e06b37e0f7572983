// Rows of x as integers of sixteen bits, of each 256 with a scale that is a power of two.
#pragma once

#include <algorithm>
#include <cstring>

#include "buffer.h"
#include "parallel.h"
#include "superblock_kinds.h"
#include "superblocks.h"

namespace {

constexpr int64_t kParallelProducts = 1 << 17;  // below this a second thread costs more than it saves
constexpr int64_t kSpan = 8;  // units of which a row of x has a scale; the last ones may be fewer

// In the order of pairs, or in two bytes each, which stand for 256 * high + low.
struct Rows {
    static constexpr float kLargest = 32639;  // both bytes of an integer are signed
    const bool in_bytes;
    const int64_t stride, units, spans;
    Buffer<int8_t> high, low;
    Buffer<int16_t> pairs;
    Buffer<float> powers;  // [rows, spans]
    Buffer<int32_t> sums;  // [rows, units, 2]: of sixteen integers

    Rows(int64_t rows, int64_t width, bool bytes)
        : in_bytes(bytes),
          stride(width),
          units(width / kUnit),
          spans((units + kSpan - 1) / kSpan),
          high(make_buffer<int8_t>(bytes ? rows * width : 0)),
          low(make_buffer<int8_t>(bytes ? rows * width : 0)),
          pairs(make_buffer<int16_t>(bytes ? 0 : rows * width)),
          powers(make_buffer<float>(rows * spans)),
          sums(make_buffer<int32_t>(rows * units * 2)) {}
};

typedef int8_t Chars __attribute__((vector_size(kLanes)));

// The largest magnitude in each lane, as bits.
template <typename T>
Words largest(const T* x, int64_t count) {
    Words most = {};
    for (int64_t k = 0; k < count; k += kLanes) {
        const Words own = (Words)load(x + k) & 0x7fffffff;
        most = own > most ? own : most;
    }
    return most;
}

// The power of two that numbers are divided by; not a number where one of them is none.
inline float power_for(Words magnitudes) {
    uint32_t lanes[kLanes], most = 0;
    std::memcpy(lanes, &magnitudes, sizeof lanes);
    for (uint32_t lane : lanes) most = lane > most ? lane : most;
    float power;
    std::memcpy(&power, &most, sizeof power);
    if (most >= 0x7f800000) return __builtin_nanf("");
    power = std::max(power / Rows::kLargest, 0x1p-100f);
    std::memcpy(&most, &power, sizeof most);
    most = (most + 0x007fffff) & 0x7f800000;
    std::memcpy(&power, &most, sizeof power);
    return power;
}

inline void put_integers(Rows& rows, int64_t at, Ints integers) {
    if (rows.in_bytes) {
        const Ints high = (integers + 128) >> 8;
        const Chars upper = __builtin_convertvector(high, Chars);
        const Chars lower = __builtin_convertvector(integers - (high << 8), Chars);
        std::memcpy(&rows.high[at], &upper, sizeof upper);
        std::memcpy(&rows.low[at], &lower, sizeof lower);
    } else {
        integers = __builtin_shuffle(integers, Ints{0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15});
        const Halves halves = __builtin_convertvector((Words)integers, Halves);
        std::memcpy(&rows.pairs[at], &halves, sizeof halves);
    }
}

template <typename T>
void round_row(Rows& rows, int64_t row, const T* x) {
    const float to_integer = 0x1.8p23f;  // a sum this large has no fraction bits left
    for (int64_t span = 0; span < rows.spans; ++span) {
        const int64_t begin = span * kSpan * kUnit, end = std::min(begin + kSpan * kUnit, rows.stride);
        const float power = power_for(largest(x + begin, end - begin)), inverse = power == power ? 1 / power : 0;
        rows.powers[row * rows.spans + span] = power;
        for (int64_t k = begin; k < end; k += kLanes) {
            const Ints rounded = (Ints)(load(x + k) * inverse + to_integer) - 0x4b400000;
            const Ints integers = inverse == 0 ? Ints{} : rounded;
            int32_t sum = 0;
            for (int lane = 0; lane < kLanes; ++lane) sum += integers[lane];
            rows.sums[row * rows.units * 2 + k / kLanes] = sum;
            put_integers(rows, row * rows.stride + k, integers);
        }
    }
}

template <typename T>
void round_rows(Rows& rows, const Product& p, int64_t count) {
    share_out(count, count * p.in >= kParallelProducts, [&](Pieces& pieces) {
        for (int64_t row; pieces.next(&row);) round_row(rows, row, static_cast<const T*>(p.x) + row * p.x_stride);
    });
}

}  // namespace
