// Transposition of tiles: rows of keys to column tiles, and column tiles to rows of values.
#pragma once

#include <type_traits>

#include "cpu/gemm/tiles.h"

namespace {

// Transposes an N x N block held in N vectors, one bit of the index at a time.
template <typename Vector, int N>
inline __attribute__((always_inline)) void transpose(Vector (&v)[N]) {
    typedef std::conditional_t<
        sizeof v[0][0] == 2, uint16_t,
        std::conditional_t<sizeof v[0][0] == 4, uint32_t, uint64_t>>
        Index;
    typedef Index Mask __attribute__((vector_size(N * sizeof(Index))));
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

// Transposes the quarters of the block, and exchanges two of them.
template <typename Half, int N>
inline __attribute__((always_inline)) void transpose(VectorPair<Half> (&v)[N]) {
    Half quarters[2][2][N / 2];
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
        quarters[i / (N / 2)][0][i % (N / 2)] = v[i].low;
        quarters[i / (N / 2)][1][i % (N / 2)] = v[i].high;
    }
    for (auto& half : quarters)
        for (auto& quarter : half) transpose(quarter);
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i)
        v[i] = {quarters[0][i / (N / 2)][i % (N / 2)], quarters[1][i / (N / 2)][i % (N / 2)]};
}

template <typename T>
struct TileTranspose {  // float and Float16: sixteen columns become sixteen rows
    using Vector = std::conditional_t<sizeof(T) == 4, Words, Halves>;
    using Units = Vector;  // sixteen units of a row
    static constexpr int kRows = kLanes;
    static void run(Vector (&v)[kRows]) { transpose(v); }
};

template <>
struct TileTranspose<BFloat16> {  // two columns become a row of pairs
    using Vector = VectorOf<uint64_t, kLanes * 4>::Type;
    using Units = Words;
    static constexpr int kRows = kLanes / 2;
    static void run(Vector (&v)[kRows]) {
        for (Vector& x : v)  // swap the middle two of four numbers
            x = (x & 0xffff00000000ffff) | (x << 16 & 0x0000ffff00000000) |
                (x >> 16 & 0x00000000ffff0000);
        transpose(v);
    }
};

// Writes sixteen rows of numbers as the columns of a tile. `width`: a multiple of the unit.
template <typename T>
void make_tile(T* tile, const T* const (&rows)[kLanes], int64_t width) {
    using Vector = typename TileTranspose<T>::Units;
    constexpr int64_t each = Units<T>::kNumbers, numbers = kLanes * each;
    int64_t n = 0;
    for (; n + numbers <= width; n += numbers) {
        Vector v[kLanes];
#pragma GCC unroll 16
        for (int k = 0; k < kLanes; ++k) v[k] = Memory<Vector>::load(rows[k] + n);
        transpose(v);
#pragma GCC unroll 16
        for (int k = 0; k < kLanes; ++k)
            Memory<Vector>::store(tile + (n + k * each) * kLanes, v[k]);
    }
    for (; n < width; n += each)
        for (int k = 0; k < kLanes; ++k)
            std::memcpy(tile + n * kLanes + k * each, rows[k] + n, each * sizeof(T));
}

// Writes two rows of values as a row of pairs. `width`: a multiple of sixteen.
inline void make_pairs(BFloat16* pairs, const BFloat16* one, const BFloat16* other, int64_t width) {
    for (int64_t n = 0; n < width; n += kLanes)
        Memory<Words>::store(pairs + n * 2, load_bits(one + n) | load_bits(other + n) << 16);
}

// Writes the first `width` numbers (a multiple of sixteen) of each column of a tile as rows of
// units.
template <typename T>
void transpose_tile(T* rows, const T* tile, int64_t width) {
    using Block = TileTranspose<T>;
    using Vector = typename Block::Vector;
    constexpr int64_t each = Units<T>::kNumbers;
    for (int64_t column = 0; column < width; column += kLanes) {
        Vector v[Block::kRows];
        const T* from = tile + column * kLanes;
#pragma GCC unroll 16
        for (int i = 0; i < Block::kRows; ++i)
            v[i] = Memory<Vector>::load(from + i * kLanes * each);
        Block::run(v);
#pragma GCC unroll 16
        for (int i = 0; i < Block::kRows; ++i)
            Memory<Vector>::store(rows + (i * width + column) * each, v[i]);
    }
}

}  // namespace
