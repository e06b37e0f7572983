// Rows of x as integers, and their products with weights.
//
// Of sixteen bits scales are powers of two: of bfloat16 all but the smallest numbers are exact in that. Of eight bits the
// largest number becomes 127 or -127. Numbers of a row that share a scale are a span; a sum is kept of each part of one, for
// what takes a zero point off or adds a least number. Whoever multiplies says how long both are.
#pragma once

#include <algorithm>
#include <cstring>

#include "buffer.h"
#include "codes.h"
#include "panel_work.h"

namespace {

constexpr int64_t kParallelNumbers = 1 << 14;  // of x: below this a second thread costs more than it saves

struct Cut {
    int64_t width;  // numbers that are kept of a row; it may have fewer, and is filled up with zeros
    int64_t span;   // the last one of a row may be shorter
    int64_t part;   // divides a span
};

// How integers lie: as halves of sixteen bits in the order of pairs, or as bytes, of which sixteen bits take two: they stand
// for 256 * high + low.
enum class Form { kPairs, kByte, kTwoBytes };

struct Rows {
    // Tile registers read whole ones, also behind the last row.
    static constexpr int64_t kBehind = kTileRegisters ? 1 : 0;

    const int64_t bits;
    const bool in_bytes, in_pairs;
    const Cut cut;
    const int64_t count;          // rows
    const int64_t run;            // numbers of a row that lie together; then comes the next row's run
    const int64_t stride;         // numbers that a row takes
    const int64_t spans, parts;   // of a row
    Buffer<int8_t> high, low;     // by `at`
    Buffer<int16_t> pairs;        // by `at`
    Buffer<float> scales;         // [spans, rows]; not a number where a span has something that is none
    Buffer<int32_t> sums;         // [parts, rows]

    // `run` 0: rows lie one after the other.
    Rows(int64_t rows, Cut cut, int64_t bits, bool in_bytes, bool in_pairs, int64_t run = 0)
        : bits(bits),
          in_bytes(in_bytes),
          in_pairs(in_pairs),
          cut(cut),
          count(rows),
          run(run ? run : rounded_up(cut.width, kLanes)),
          stride(rounded_up(cut.width, this->run)),
          spans((cut.width + cut.span - 1) / cut.span),
          parts((cut.width + cut.part - 1) / cut.part),
          high(make_buffer<int8_t>(in_bytes && bits == 16 ? size(rows) : 0)),
          low(make_buffer<int8_t>(in_bytes ? size(rows) : 0)),
          pairs(make_buffer<int16_t>(in_pairs ? size(rows) : 0)),
          scales(make_buffer<float>(rows * spans)),
          sums(make_buffer<int32_t>(rows * parts)) {}

    // Where number k of a row lies.
    int64_t at(int64_t row, int64_t k) const { return (k / run * count + row) * run + k % run; }

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

// The largest lane, and the sum of all.
inline int32_t largest(Ints lanes) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)lanes);
#else
    int32_t most = lanes[0];
    for (int i = 1; i < kLanes; ++i) most = std::max(most, lanes[i]);
    return most;
#endif
}

inline int32_t summed(Ints lanes) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)lanes);
#else
    int32_t sum = 0;
    for (int i = 0; i < kLanes; ++i) sum += lanes[i];
    return sum;
#endif
}

// Calls body(place, numbers) for sixteen at a time; behind the last ones are zeros.
template <typename Body>
inline __attribute__((always_inline)) void for_lanes(const float* numbers, int64_t first, int64_t end, Body body) {
    int64_t k = first;
    for (; k + kLanes <= end; k += kLanes) body(k, load(numbers + k));
    if (k < end) body(k, load(numbers + k, end - k));
}

// What numbers are divided by, given the bits of the largest one; not a number where one of them is none.
inline float scale_for(uint32_t most, int64_t bits) {
    float scale;
    std::memcpy(&scale, &most, sizeof scale);
    if (most >= 0x7f800000) return __builtin_nanf("");
    if (bits == 8) return std::max(scale * (1.0f / 127), 0x1p-100f);
    scale = std::max(scale * (1.0f / 32639), 0x1p-100f);  // both bytes are signed
    std::memcpy(&most, &scale, sizeof most);
    most = (most + 0x007fffff) & 0x7f800000;
    std::memcpy(&scale, &most, sizeof scale);
    return scale;
}

inline void put_integers(Rows& rows, int64_t at, Ints integers) {
    if (rows.in_bytes) {
        const Ints high = rows.bits == 8 ? Ints{} : (integers + 128) >> 8;
        const Chars lower = __builtin_convertvector(integers - (high << 8), Chars);
        std::memcpy(&rows.low[at], &lower, sizeof lower);
        if (rows.bits == 16) {
            const Chars upper = __builtin_convertvector(high, Chars);
            std::memcpy(&rows.high[at], &upper, sizeof upper);
        }
    }
    if (rows.in_pairs) {
        integers = __builtin_shuffle(integers, Ints{0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15});
        const Halves halves = __builtin_convertvector((Words)integers, Halves);
        std::memcpy(&rows.pairs[at], &halves, sizeof halves);
    }
}

// Makes integers of one row's numbers, which are filled up with zeros to the stride.
inline void round_row(Rows& rows, int64_t row, const float* numbers, int32_t* integers) {
    const Floats to_integer = spread(0x1.8p23f);  // a sum this large has no fraction bits left
    const Cut& cut = rows.cut;
    int64_t part = 0;
    for (int64_t span = 0; span < rows.spans; ++span) {
        const int64_t first = span * cut.span, end = std::min(first + cut.span, cut.width);
        Ints most = {};
        for_lanes(numbers, first, end, [&](int64_t, Floats own) {
            const Ints bits = (Ints)own & 0x7fffffff;
            most = bits > most ? bits : most;
        });
        const float scale = scale_for(largest(most), rows.bits), inverse = scale == scale ? 1 / scale : 0;
        rows.scales[span * rows.count + row] = scale;
        for (int64_t begin = first; begin < end; begin += cut.part, ++part) {
            Ints sum = {};
            for_lanes(numbers, begin, std::min(begin + cut.part, end), [&](int64_t k, Floats own) {
                const Ints made = inverse == 0 ? Ints{} : (Ints)(own * inverse + to_integer) - 0x4b400000;
                std::memcpy(integers + k, &made, sizeof made);  // what is behind the last is written again, or is zero
                sum += made;
            });
            rows.sums[part * rows.count + row] = summed(sum);
        }
    }
    for (int64_t k = 0, at = row * rows.run; k < rows.stride; k += rows.run, at += rows.count * rows.run)
        for (int64_t i = 0; i < rows.run; i += kLanes) {
            Ints own;
            std::memcpy(&own, integers + k + i, sizeof own);
            put_integers(rows, at + i, own);
        }
}

// Rounds the first `count` rows of x. `order`, or null, names for each place of a row the number that comes there.
inline void round_rows(Rows& rows, const Product& p, int64_t count, int32_t dtype, const int32_t* order = nullptr) {
    share_out(count, count * rows.stride >= kParallelNumbers, [&](Pieces& pieces) {
        const Buffer<float> numbers = make_buffer<float>(rows.stride);
        const Buffer<int32_t> integers = make_buffer<int32_t>(rows.stride + kLanes);
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

// Inputs whose integers are multiplied at once, by C words of weights.
template <Form kForm>
constexpr int kAtOnce = kForm == Form::kPairs ? 2 : kQuad;

// Adds the products of R rows of x, whose numbers are `run` apart from `at` on, with words of C tiles to their sums; where x
// has two bytes, those of the higher ones to sums of their own.
template <Form kForm, int R, int C>
inline __attribute__((always_inline)) void add_products(Ints (&sums)[R][C], Ints (&high)[R][C], const Rows& rows, int64_t at,
                                                        int64_t run, const Words (&own)[C]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const int64_t x = at + r * run;
        if constexpr (kForm == Form::kPairs) {
            const Words numbers = spread_word(&rows.pairs[x]);
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) sums[r][c] = add_pairs(sums[r][c], numbers, own[c]);
        } else {
            const Words lower = spread_word(&rows.low[x]);
            const Words upper = kForm == Form::kTwoBytes ? spread_word(&rows.high[x]) : Words{};
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) {
                if constexpr (kForm == Form::kTwoBytes) high[r][c] = add_bytes(high[r][c], upper, own[c]);
                sums[r][c] = add_bytes(sums[r][c], lower, own[c]);
            }
        }
    }
}

// Both sums as one.
template <Form kForm>
inline Ints joined(Ints sum, Ints high) {
    return kForm == Form::kTwoBytes ? sum + (high << 8) : sum;
}

}  // namespace
