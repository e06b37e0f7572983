// Many rows times one tile of columns that was opened: widened to float32 in the first-level cache,
// where all blocks of rows read it.
#pragma once

#include "cpu/gemm/micro_kernel.h"

namespace {

constexpr int64_t kOpenedDepth = 256;  // inputs that are opened together

// Calls body(Count<R>(), first row, index, blocks) for rows split evenly into blocks.
template <int kMaxRows, typename Body>
inline void in_even_blocks(int64_t rows, Body body) {
    const int64_t blocks = (rows + kMaxRows - 1) / kMaxRows;
    for (int64_t b = 0; b < blocks; ++b) {
        const int64_t first = rows * b / blocks, count = rows * (b + 1) / blocks - first;
        with_rows<kMaxRows>(count, [&](auto own) { body(own, first, b, blocks); });
    }
}

// sums[r] += x[r] * an opened tile.
template <int R>
inline __attribute__((always_inline)) void multiply_opened(Floats (&sums)[R][1], const float* x,
                                                           int64_t x_stride, const float* opened,
                                                           int64_t depth, Prefetch ahead) {
    const float* const tiles[1] = {opened};
    multiply_wide<float, R, 1>(sums, x, x_stride, tiles, kLanes, depth, ahead);
}

// Opens `units` units of a packed tile.
template <typename T>
inline void open_tile(float* to, const T* tile, int64_t step, int64_t units) {
    using U = WideUnits<T>;
    for (int64_t k = 0; k < units; ++k) {
        const typename U::Column column = U::load_column(tile + k * step);
        for (int i = 0; i < U::kNumbers; ++i, to += kLanes) store(to, U::number(column, i));
    }
}

}  // namespace
