// Rows of x quantized to integers, and their dot products with codes.
//
// 16-bit scales are powers of two, exact for nearly all bfloat16 numbers. With eight bits the
// largest magnitude becomes 127. Numbers of a row that share a scale form a span. Each part of a
// span has a sum, for subtracting zero points or adding minima. The kernel chooses the lengths of
// both.
#pragma once

#include <algorithm>
#include <cstring>

#include "cpu/buffer.h"
#include "cpu/quant/codes.h"
#include "cpu/gemm/panel_work.h"

namespace {

constexpr int64_t kParallelNumbers = 1 << 14;  // of x: below this a second thread does not pay

struct RowLayout {
    int64_t width;  // numbers per row; shorter rows are padded with zeros
    int64_t span;   // the last span of a row may be shorter
    int64_t part;   // divides a span
};

// Storage of the integers: 16-bit halves in pair order, or bytes; 16-bit integers take two bytes,
// 256 * high + low.
enum class IntegerLayout { kPairs, kByte, kTwoBytes };

struct QuantizedRows {
    // Tile registers read whole tiles, past the last row.
    static constexpr int64_t kSpareRows = kTileRegisters ? 1 : 0;

    const int64_t bits;
    const bool in_bytes, in_pairs;
    const RowLayout layout;
    const int64_t count;         // rows
    const int64_t run;           // numbers of a row stored together, before the next row's run
    const int64_t stride;        // numbers per row, padded
    const int64_t spans, parts;  // per row
    Buffer<int8_t> high, low;    // indexed by `at`
    Buffer<int16_t> pairs;       // indexed by `at`
    Buffer<float> scales;        // [spans, rows]; NaN for a span with a NaN or infinity
    Buffer<int32_t> sums;        // [parts, rows]

    // `run` 0: rows are consecutive.
    QuantizedRows(int64_t rows, RowLayout layout, int64_t bits, bool in_bytes, bool in_pairs,
                  int64_t run = 0)
        : bits(bits),
          in_bytes(in_bytes),
          in_pairs(in_pairs),
          layout(layout),
          count(rows),
          run(run ? run : rounded_up(layout.width, kLanes)),
          stride(rounded_up(layout.width, this->run)),
          spans((layout.width + layout.span - 1) / layout.span),
          parts((layout.width + layout.part - 1) / layout.part),
          high(make_buffer<int8_t>(in_bytes && bits == 16 ? size(rows) : 0)),
          low(make_buffer<int8_t>(in_bytes ? size(rows) : 0)),
          pairs(make_buffer<int16_t>(in_pairs ? size(rows) : 0)),
          scales(make_buffer<float>(rows * spans)),
          sums(make_buffer<int32_t>(rows * parts)) {}

    // Index of element k of a row.
    int64_t at(int64_t row, int64_t k) const {
        if (count == 1 || k < run) return row * run + k;  // a division costs as much as a vector
        return (k / run * count + row) * run + k % run;
    }

private:
    int64_t size(int64_t rows) const {
        return rows * stride + kSpareRows * (kTileRows * stride + kTileBytes);
    }
};

template <typename T>
void read_row(float* to, const T* from, int64_t count, int64_t stride) {
    int64_t at = 0;
    if (stride == 1)
        for (; at + kLanes <= count; at += kLanes) store(to + at, load(from + at));
    for (; at < count; ++at) to[at] = widened(from[at * stride]);
}

inline Ints maximum(Ints a, Ints b) {
    return in_registers(a, b, [](auto x, auto y) { return x > y ? x : y; });
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Combines all lanes in registers; `reduce` goes through memory.
template <typename Combine>
inline int32_t reduce_lanes(Ints lanes, Combine combine) {
    const __m256i both = combine((__m256i)lanes.low, (__m256i)lanes.high);
    __m256i own = combine(both, _mm256_permute4x64_epi64(both, 0x4e));  // the other half
    own = combine(own, _mm256_shuffle_epi32(own, 0x4e));
    own = combine(own, _mm256_shuffle_epi32(own, 0xb1));
    return _mm256_cvtsi256_si32(own);
}
#endif

// The maximum and the sum of all lanes.
inline int32_t largest(Ints lanes) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)lanes);
#elif defined(__AVX2__)
    return reduce_lanes(lanes, [](auto a, auto b) { return _mm256_max_epi32(a, b); });
#else
    return reduce(lanes, [](auto a, auto b) { return select(a > b, a, b); });
#endif
}

inline int32_t summed(Ints lanes) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)lanes);
#elif defined(__AVX2__)
    return reduce_lanes(lanes, [](auto a, auto b) { return _mm256_add_epi32(a, b); });
#else
    return reduce(lanes, [](auto a, auto b) { return a + b; });
#endif
}

// Calls body(index, numbers) for sixteen numbers at a time; the last ones are padded with zeros.
template <typename T, typename Body>
inline __attribute__((always_inline)) void for_lanes(const T* numbers, int64_t first, int64_t end,
                                                     Body body) {
    int64_t k = first;
    for (; k + kLanes <= end; k += kLanes) body(k, load(numbers + k));
    if (k < end) body(k, load(numbers + k, end - k));
}

// Returns the scale for the bits of the largest magnitude; NaN if that is NaN or infinity.
inline float scale_for(uint32_t max_bits, int64_t bits) {
    float scale;
    std::memcpy(&scale, &max_bits, sizeof scale);
    if (max_bits >= 0x7f800000) return __builtin_nanf("");
    if (bits == 8) return std::max(scale * (1.0f / 127), 0x1p-100f);
    scale = std::max(scale * (1.0f / 32639), 0x1p-100f);  // both bytes are signed
    std::memcpy(&max_bits, &scale, sizeof max_bits);
    max_bits = (max_bits + 0x007fffff) & 0x7f800000;
    std::memcpy(&scale, &max_bits, sizeof scale);
    return scale;
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Stores sixteen integers of a row.
inline void store_integers(QuantizedRows& rows, int64_t at, Ints integers) {
    constexpr int kInOrder = 0xd8;  // quarters 0, 2, 1, 3: packing interleaves them
    const __m256i shorts = _mm256_permute4x64_epi64(
        _mm256_packs_epi32((__m256i)integers.low, (__m256i)integers.high), kInOrder);
    if (rows.in_bytes) {
        const __m256i byte = _mm256_set1_epi16(0xff),
                      high = _mm256_srai_epi16(_mm256_add_epi16(shorts, _mm256_set1_epi16(128)), 8);
        const __m256i both = _mm256_permute4x64_epi64(
            _mm256_packus_epi16(_mm256_and_si256(shorts, byte), _mm256_and_si256(high, byte)),
            kInOrder);
        std::memcpy(&rows.low[at], &both, kLanes);
        if (rows.bits == 16)
            std::memcpy(&rows.high[at], reinterpret_cast<const char*>(&both) + kLanes, kLanes);
    }
    if (rows.in_pairs) {  // the middle two of four numbers are swapped
        const __m256i order = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
        const __m256i pairs = _mm256_shuffle_epi8(shorts, order);
        std::memcpy(&rows.pairs[at], &pairs, sizeof pairs);
    }
}
#else
inline void store_integers(QuantizedRows& rows, int64_t at, Ints integers) {
    if (rows.in_bytes) {
        const Ints high = rows.bits == 8 ? Ints{} : (integers + 128) >> 8;
        Memory<Ints>::store_as(&rows.low[at], integers - (high << 8));
        if (rows.bits == 16) Memory<Ints>::store_as(&rows.high[at], high);
    }
    if (rows.in_pairs) {
        uint64_t fours[kLanes / kQuad];
        store_bits(fours, (Words)integers);
        for (uint64_t& four : fours)  // swap the middle two of four numbers
            four = (four & 0xffff00000000ffff) | (four << 16 & 0x0000ffff00000000) |
                   (four >> 16 & 0x00000000ffff0000);
        std::memcpy(&rows.pairs[at], fours, sizeof fours);
    }
}
#endif

// Returns the scale of a span of a row.
template <typename T>
inline float span_scale(const T* numbers, int64_t first, int64_t end, int64_t bits) {
    Ints max_bits = {};
    for_lanes(numbers, first, end, [&](int64_t, Floats own) {
        max_bits = maximum((Ints)own & 0x7fffffff, max_bits);
    });
    return scale_for(largest(max_bits), bits);
}

// Quantizes one row of consecutive numbers; padding stays zero. Calls put(index, sixteen integers).
template <typename T, typename Put>
inline __attribute__((always_inline)) void quantize_row(QuantizedRows& rows, int64_t row,
                                                        const T* numbers, Put put) {
    const Floats to_integer = spread(0x1.8p23f);  // adding 1.5 * 2^23 rounds to an integer
    const RowLayout& layout = rows.layout;
    int64_t part = 0;
    for (int64_t span = 0; span < rows.spans; ++span) {
        const int64_t first = span * layout.span, end = std::min(first + layout.span, layout.width);
        const float scale = span_scale(numbers, first, end, rows.bits),
                    inverse = scale == scale ? 1 / scale : 0;
        rows.scales[span * rows.count + row] = scale;
        for (int64_t begin = first; begin < end; begin += layout.part, ++part) {
            Ints sum = {};
            for_lanes(numbers, begin, std::min(begin + layout.part, end),
                      [&](int64_t k, Floats own) {
                          const Ints made = inverse == 0
                                                ? Ints{}
                                                : (Ints)(own * inverse + to_integer) - 0x4b400000;
                          put(k, made);
                          sum += made;
                      });
            rows.sums[part * rows.count + row] = summed(sum);
        }
    }
}

// Quantizes one row. Parts of whole vectors are stored directly.
template <typename T>
inline void quantize_row(QuantizedRows& rows, int64_t row, const T* numbers) {
    if (rows.layout.part % kLanes == 0)
        return quantize_row(rows, row, numbers, [&](int64_t k, Ints integers) {
            store_integers(rows, rows.at(row, k), integers);
        });
    const Buffer<int32_t> all = make_buffer<int32_t>(rows.stride + kLanes);
    quantize_row(rows, row, numbers, [&](int64_t k, Ints integers) {
        store_vector(&all[k], integers);  // padding is overwritten, or zero
    });
    for (int64_t k = 0; k < rows.stride; k += kLanes)
        store_integers(rows, rows.at(row, k), load_vector<Ints>(&all[k]));
}

// Quantizes the first `count` rows of x. `order`, or null: index into x for each element of a row.
inline void quantize_rows(QuantizedRows& rows, const Product& p, int64_t count, int32_t dtype,
                          const int32_t* order = nullptr) {
    run_workers(count, count * rows.stride >= kParallelNumbers, [&](WorkItems& items) {
        const bool whole = !order && p.in == rows.layout.width;
        const Buffer<float> numbers = make_buffer<float>(whole ? 0 : rows.stride);
        for (int64_t row; items.next(&row);)
            with_dtype(dtype, [&](auto number) {
                const auto* x = static_cast<const decltype(number)*>(p.x) + row * p.x_stride;
                if (whole) return quantize_row(rows, row, x);
                if (order)
                    for (int64_t k = 0; k < p.in; ++k) numbers[k] = widened(x[order[k]]);
                else
                    read_row(numbers.get(), x, p.in, 1);
                quantize_row<float>(rows, row, numbers.get());
            });
    });
}

// Inputs multiplied at once by C words of weights.
template <IntegerLayout kLayout>
constexpr int kAtOnce = kLayout == IntegerLayout::kPairs ? 2 : kQuad;

// Adds the products of R rows of x (`run` apart, from `at`) with the words of C tiles; for two-byte
// x the high bytes have their own sums.
template <IntegerLayout kLayout, int R, int C>
inline __attribute__((always_inline)) void add_products(Ints (&sums)[R][C], Ints (&high)[R][C],
                                                        const QuantizedRows& rows, int64_t at,
                                                        int64_t run, const Words (&own)[C]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const int64_t x = at + r * run;
        if constexpr (kLayout == IntegerLayout::kPairs) {
            const Words numbers = spread_word(&rows.pairs[x]);
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) sums[r][c] = add_pairs(sums[r][c], numbers, own[c]);
        } else {
            const Words lower = spread_word(&rows.low[x]);
            const Words upper =
                kLayout == IntegerLayout::kTwoBytes ? spread_word(&rows.high[x]) : Words{};
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) {
                if constexpr (kLayout == IntegerLayout::kTwoBytes)
                    high[r][c] = add_bytes(high[r][c], upper, own[c]);
                sums[r][c] = add_bytes(sums[r][c], lower, own[c]);
            }
        }
    }
}

// Combines the low and high sums.
template <IntegerLayout kLayout>
inline Ints combined(Ints sum, Ints high) {
    return kLayout == IntegerLayout::kTwoBytes ? sum + (high << 8) : sum;
}

}  // namespace
