// Rows of x as integers of sixteen bits with scales that are powers of two: of bfloat16 all but the smallest numbers are exact
// in that.
//
// Numbers of a row that share a scale are a span; a sum is kept of each part of one, for what takes a zero point off or adds
// a least number. Whoever multiplies says how long both are.
#pragma once

#include <algorithm>
#include <cstring>

#include "buffer.h"
#include "codes.h"
#include "panel_work.h"

namespace {

struct Cut {
    int64_t width;  // numbers that are kept of a row; it may have fewer, and is filled up with zeros
    int64_t span;   // the last one of a row may be shorter
    int64_t part;   // divides a span
};

// In the order of pairs, in two bytes each, which stand for 256 * high + low, or both.
struct Rows {
    static constexpr float kLargest = 32639;  // both bytes of an integer are signed
    // Tile registers read whole ones, also behind the last row.
    static constexpr int64_t kBehind = kTileRegisters ? 1 : 0;

    const bool in_bytes, in_pairs;
    const Cut cut;
    const int64_t stride, spans, parts;
    Buffer<int8_t> high, low;
    Buffer<int16_t> pairs;
    Buffer<float> powers;  // [rows, spans]; not a number where a span has something that is none
    Buffer<int32_t> sums;  // [rows, parts]

    Rows(int64_t rows, Cut cut, bool in_bytes, bool in_pairs)
        : in_bytes(in_bytes),
          in_pairs(in_pairs),
          cut(cut),
          stride(rounded_up(cut.width, kLanes)),
          spans((cut.width + cut.span - 1) / cut.span),
          parts((cut.width + cut.part - 1) / cut.part),
          high(make_buffer<int8_t>(in_bytes ? size(rows) : 0)),
          low(make_buffer<int8_t>(in_bytes ? size(rows) : 0)),
          pairs(make_buffer<int16_t>(in_pairs ? size(rows) : 0)),
          powers(make_buffer<float>(rows * spans)),
          sums(make_buffer<int32_t>(rows * parts)) {}

private:
    int64_t size(int64_t rows) const { return rows * stride + kBehind * (kTileRows * stride + kTileBytes); }
};

typedef int8_t Chars __attribute__((vector_size(kLanes)));

template <typename T>
void read_row(float* to, const T* from, int64_t count, int64_t stride) {
    int64_t at = 0;
    if (stride == 1)
        for (; at + kLanes <= count; at += kLanes) store(to + at, load(from + at));
    for (; at < count; ++at) to[at] = widened(from[at * stride]);
}

// The power of two that numbers are divided by; not a number where one of them is none.
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
    }
    if (rows.in_pairs) {
        integers = __builtin_shuffle(integers, Ints{0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15});
        const Halves halves = __builtin_convertvector((Words)integers, Halves);
        std::memcpy(&rows.pairs[at], &halves, sizeof halves);
    }
}

// Makes integers of one row's numbers, which are filled up with zeros to the stride.
inline void round_row(Rows& rows, int64_t row, const float* numbers, int32_t* integers) {
    const float to_integer = 0x1.8p23f;  // a sum this large has no fraction bits left
    const Cut& cut = rows.cut;
    for (int64_t span = 0; span < rows.spans; ++span) {
        const int64_t first = span * cut.span, end = std::min(first + cut.span, cut.width);
        const float power = power_for(numbers + first, end - first), inverse = power == power ? 1 / power : 0;
        rows.powers[row * rows.spans + span] = power;
        for (int64_t k = first; k < end; ++k) {
            const float shifted = numbers[k] * inverse + to_integer;
            int32_t bits;
            std::memcpy(&bits, &shifted, sizeof bits);
            integers[k] = inverse == 0 ? 0 : bits - 0x4b400000;
        }
    }
    for (int64_t part = 0; part < rows.parts; ++part) {
        int32_t sum = 0;
        for (int64_t k = part * cut.part; k < std::min((part + 1) * cut.part, cut.width); ++k) sum += integers[k];
        rows.sums[row * rows.parts + part] = sum;
    }
    for (int64_t k = 0; k < rows.stride; k += kLanes) {
        Ints own;
        std::memcpy(&own, integers + k, sizeof own);
        put_integers(rows, row * rows.stride + k, own);
    }
}

// Rounds the first `count` rows of x. `order`, or null, names for each place of a row the number that comes there.
inline void round_rows(Rows& rows, const Product& p, int64_t count, int32_t dtype, const int32_t* order = nullptr) {
    share_out(count, count * rows.stride >= kParallelProducts, [&](Pieces& pieces) {
        const Buffer<float> numbers = make_buffer<float>(rows.stride);
        const Buffer<int32_t> integers = make_buffer<int32_t>(rows.stride);
        for (int64_t row; pieces.next(&row);) {
            with_dtype(dtype, [&](auto number) {
                const auto* x = static_cast<const decltype(number)*>(p.x) + row * p.x_stride;
                if (order)
                    for (int64_t k = 0; k < p.in; ++k) numbers[k] = widened(x[order[k]]);
                else
                    read_row(numbers.get(), x, p.in, 1);
            });
            round_row(rows, row, numbers.get(), integers.get());
        }
    });
}

}  // namespace
