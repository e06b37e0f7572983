// Products of queries with keys, and of softmax weights with values.
//
// Where no instruction multiplies pairs of bfloat16, queries and weights are float32: they are
// converted once, and each product broadcasts them from memory.
#pragma once

#include <type_traits>

#include "cpu/gemm/tiles.h"

namespace {

// Type of the queries and weights that are multiplied by keys and values of type T.
template <typename T>
using Factor =
    std::conditional_t<std::is_same_v<T, BFloat16> && kMultipliesPairs, BFloat16, float>;

// Rows of a block of products: as many as leave registers for the columns.
#if defined(__AVX2__) && !defined(__AVX512F__)
template <typename T>
constexpr int kBlockRows = 6;
#else
template <typename T>
constexpr int kBlockRows = kRowsOf<T>;
#endif

// Column tiles of a block with this number of rows: few rows need several for enough sums that do
// not wait for each other.
constexpr int columns_of(int rows) {
#if defined(__AVX512F__)
    return rows > 0 ? kTiles : 0;
#elif defined(__AVX2__)
    return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
#else
    return rows > 0 ? 1 : 0;
#endif
}

// Widens one unit of each column of a tile: its numbers one by one.
template <typename T>
struct WideUnit {
    static Floats number(const T* tile, int) { return load(tile); }
};

template <>
struct WideUnit<BFloat16> {
    static Floats number(const BFloat16* tile, int i) {
        const Words pairs = Memory<Words>::load(tile);
        return (Floats)(i == 0 ? pairs << 16 : pairs & 0xffff0000);
    }
};

// sums[r][c] += x[r] * tile c over `steps` units. Strides in elements.
template <typename T, int R, int C>
inline __attribute__((always_inline)) void multiply_tiles(Floats (&sums)[R][C],
                                                          const Factor<T>* x, int64_t x_stride,
                                                          const T* const (&tiles)[C],
                                                          int64_t tile_step, int64_t steps,
                                                          Prefetch ahead) {
    if constexpr (std::is_same_v<Factor<T>, BFloat16>) {
        multiply<T, R, C>(sums, x, x_stride, tiles, tile_step, steps, ahead);
    } else {
        constexpr int kNumbers = Units<T>::kNumbers;
        for (int64_t k = 0; k < steps; ++k) {
            prefetch_unit(ahead, k);
#pragma GCC unroll 2
            for (int i = 0; i < kNumbers; ++i) {
                Floats columns[C];
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c)
                    columns[c] = WideUnit<T>::number(tiles[c] + k * tile_step, i);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    const Floats row = spread(x[r * x_stride + k * kNumbers + i]);
#pragma GCC unroll 8
                    for (int c = 0; c < C; ++c) sums[r][c] = sums[r][c] + row * columns[c];
                }
            }
        }
    }
}

// Copies a row of queries or weights as factors.
template <typename T>
inline void copy_factors(Factor<T>* to, const T* from, int64_t size) {
    if constexpr (std::is_same_v<Factor<T>, T>) {
        std::memcpy(to, from, size * sizeof(T));
    } else {
        int64_t n = 0;
        for (; n + kLanes <= size; n += kLanes) store(to + n, load(from + n));
        if (n < size) store(to + n, load(from + n, size - n), size - n);
    }
}

// Copies one unit of each column without its second number.
template <typename T, int C>
inline void copy_first(T* to, const T* const (&tiles)[C], int64_t offset) {
    constexpr int64_t each = Units<T>::kNumbers;
    for (int64_t i = 0; i < C * kLanes; ++i) {
        to[i * each] = tiles[i / kLanes][offset + i % kLanes * each];
        to[i * each + each - 1] = each == 1 ? to[i * each] : T{};
    }
}

}  // namespace
