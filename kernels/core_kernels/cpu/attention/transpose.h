// Transposition of tiles: rows of keys to column tiles, and column tiles to rows of values.
#pragma once

#include <type_traits>

#include "cpu/gemm/tiles.h"

namespace {

// Transposes an N x N block held in N vectors, one bit of the index at a time.
template <typename Vector, typename Mask, int N>
inline __attribute__((always_inline)) void transpose(Vector (&v)[N]) {
#pragma GCC unroll 4
    for (int step = 1; step < N; step *= 2) {
        Mask low, high;
#pragma GCC unroll 16
        for (int lane = 0; lane < N; ++lane) {
            low[lane] = lane & step ? N + lane - step : lane;
            high[lane] = lane & step ? N + lane : lane + step;
        }
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) {
            if (i & step) continue;
            const Vector first = v[i], second = v[i + step];
            v[i] = __builtin_shuffle(first, second, low);
            v[i + step] = __builtin_shuffle(first, second, high);
        }
    }
}

template <typename T>
struct TileTranspose {  // float and Float16: sixteen columns become sixteen rows
    using Vector = std::conditional_t<sizeof(T) == 4, Words, Halves>;
    using Units = Vector;  // sixteen units of a row
    static constexpr int kRows = kLanes;
    static void run(Vector (&v)[kRows]) { transpose<Vector, Vector, kRows>(v); }
};

template <>
struct TileTranspose<BFloat16> {  // two columns become a row of pairs
    typedef uint64_t Vector __attribute__((vector_size(kLanes * 4)));
    using Units = Words;
    static constexpr int kRows = kLanes / 2;
    static void run(Vector (&v)[kRows]) {
        for (Vector& x : v)  // swap the middle two of four numbers
            x = (x & 0xffff00000000ffff) | (x << 16 & 0x0000ffff00000000) |
                (x >> 16 & 0x00000000ffff0000);
        transpose<Vector, Vector, kRows>(v);
    }
};

// Writes the first `width` numbers (a multiple of sixteen) of each column of a tile as rows of
// units.
template <typename T>
void transpose_tile(T* rows, const T* tile, int64_t width) {
    using Block = TileTranspose<T>;
    constexpr int64_t each = Units<T>::kNumbers, bytes = sizeof(typename Block::Vector);
    for (int64_t column = 0; column < width; column += kLanes) {
        typename Block::Vector v[Block::kRows];
        const T* from = tile + column * kLanes;
#pragma GCC unroll 16
        for (int i = 0; i < Block::kRows; ++i) std::memcpy(&v[i], from + i * kLanes * each, bytes);
        Block::run(v);
#pragma GCC unroll 16
        for (int i = 0; i < Block::kRows; ++i)
            std::memcpy(rows + (i * width + column) * each, &v[i], bytes);
    }
}

}  // namespace
