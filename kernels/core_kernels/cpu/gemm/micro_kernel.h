// The micro-kernel of products with float32 rows: R rows of x times C tiles of sixteen columns.
//
// Weights are widened to float32 in registers. Each result is one lane's sum over the inputs in
// order, so it is the same for every R and C, and for weights that were widened before.
#pragma once

#include "cpu/gemm/tiles.h"
#include "cpu/vector_memory.h"

namespace {

// Rows of x are widened to float32 once, before the product, except where instructions multiply
// bfloat16.
template <typename T>
constexpr bool kWidensInput = !(kMultipliesPairs && std::is_same_v<T, BFloat16>);
template <typename T>
using Input = std::conditional_t<kWidensInput<T>, float, T>;

// Largest block of sums that stays in registers: with one row more columns than with several.
#if defined(__AVX512F__)
constexpr bool kWholePanels = true;  // a block of several rows covers a panel
constexpr int kBlockRows = 6;
template <int R>
constexpr int kBlockTiles = kTiles;
#elif defined(__AVX2__) || defined(__aarch64__)
constexpr bool kWholePanels = false;
constexpr int kBlockRows = 6;
template <int R>
constexpr int kBlockTiles = R == 1 ? kTiles : R == 2 ? 2 : 1;
#else
constexpr bool kWholePanels = false;
constexpr int kBlockRows = 3;
template <int R>
constexpr int kBlockTiles = R == 1 ? 2 : 1;
#endif

// One input of sixteen columns after the other.
template <typename T>
struct WideUnits {
    static constexpr int kNumbers = 1;
    typedef Floats Column;
    static Column load_column(const T* tile) { return load(tile); }
    static Floats number(Column column, int) { return column; }
};

template <>
struct WideUnits<BFloat16> {
    static constexpr int kNumbers = 2;
    typedef Words Column;
    static Column load_column(const BFloat16* tile) {
        return load_vector<Words>(tile);
    }
    static Floats number(Column pairs, int at) {
        return at == 0 ? (Floats)(pairs << 16) : (Floats)(pairs & 0xffff0000);
    }
};

// sums[r][c] += x[r] * tile c over `steps` units. Strides in elements.
template <typename T, int R, int C>
inline __attribute__((always_inline)) void multiply_wide(Floats (&sums)[R][C], const float* x,
                                                         int64_t x_stride,
                                                         const T* const (&tiles)[C],
                                                         int64_t tile_step, int64_t steps,
                                                         Prefetch ahead) {
    using U = WideUnits<T>;
    constexpr int kEach = U::kNumbers;
    for (int64_t k = 0; k < steps; ++k) {
        prefetch_unit(ahead, k);
        const float* own = x + k * kEach;
        if constexpr (R <= C) {  // numbers of x stay in registers, columns go by
            Floats numbers[R][kEach];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
                for (int i = 0; i < kEach; ++i) numbers[r][i] = spread(own[r * x_stride + i]);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                const typename U::Column column = U::load_column(tiles[c] + k * tile_step);
#pragma GCC unroll 2
                for (int i = 0; i < kEach; ++i)
#pragma GCC unroll 8
                    for (int r = 0; r < R; ++r)
                        sums[r][c] = sums[r][c] + numbers[r][i] * U::number(column, i);
            }
        } else {
            typename U::Column columns[C];
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) columns[c] = U::load_column(tiles[c] + k * tile_step);
#pragma GCC unroll 2
            for (int i = 0; i < kEach; ++i)
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    const Floats number = spread(own[r * x_stride + i]);
#pragma GCC unroll 8
                    for (int c = 0; c < C; ++c)
                        sums[r][c] = sums[r][c] + number * U::number(columns[c], i);
                }
        }
    }
}

}  // namespace
