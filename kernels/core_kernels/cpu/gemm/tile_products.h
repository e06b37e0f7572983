// GEMM blocks in tile registers: rows times tiles of sixteen columns.
//
// A register holds sixteen units (tiles.h) of sixteen columns, or fewer. One tile product adds a
// chunk of units. `multiply` of tiles.h adds chunks in the same order, so results are bitwise
// equal.
#pragma once

#include <cstring>
#include <utility>

#include "cpu/gemm/tile_registers.h"
#include "cpu/gemm/tiles.h"

#if defined(TILE_REGISTERS)

namespace {

template <typename Body, int... kNumbers>
inline __attribute__((always_inline)) void count(Body body,
                                                 std::integer_sequence<int, kNumbers...>) {
    (body(std::integral_constant<int, kNumbers>()), ...);
}

// Calls body(0), body(1), ... with compile-time constants.
template <int kNumber, typename Body>
inline __attribute__((always_inline)) void count(Body body) {
    count(body, std::make_integer_sequence<int, kNumber>());
}

// Sums of R groups of rows by C tiles, held in R * C registers; the other registers hold operands.
// Configured during its lifetime. Strides in bytes.
template <int R, int C>
class TileBlock {
public:
    TileBlock(int64_t rows, int64_t depth)
        : first_((rows + R - 1) / R), shapes_(rows, first_, depth), configured_(shapes_) {}

    void clear() const {
        count<R * C>([](auto i) { tile::zero<i>(); });
    }
    void load(const float* sums, int64_t stride) const {
        count<R * C>([&](auto i) { tile::load<i>(tile_of(sums, stride, i), stride); });
    }
    void store(float* sums, int64_t stride) const {
        count<R * C>(
            [&](auto i) { tile::store<i>(const_cast<char*>(tile_of(sums, stride, i)), stride); });
    }

    // Adds the products of the next `depth` units.
    void add(const void* x, int64_t x_stride, const char* const (&columns)[C],
             int64_t stride) const {
        count<R>([&](auto r) {
            tile::load<kX + r>(static_cast<const char*>(x) + r * first_ * x_stride, x_stride);
        });
        count<C>([&](auto c) {
            constexpr int column = kColumns + c % kAtOnce;
            tile::load<column>(columns[c], stride);
            count<R>([&](auto r) { tile::add_pairs<r * C + c, kX + r, column>(); });
        });
    }

private:
    static constexpr int kX = R * C, kColumns = kX + R,
                         kAtOnce = 8 - kColumns < C ? 8 - kColumns : C;

    struct Shapes : TileShapes {
        Shapes(int64_t rows, int64_t first, int64_t depth) {
            count<R>([&](auto r) {
                const int64_t own = r == 0 ? first : rows - first;
                count<C>([&](auto c) { set(r * C + c, own, kTileBytes); });
                set(kX + r, own, depth * 4);
            });
            count<kAtOnce>([&](auto c) { set(kColumns + c, depth, kTileBytes); });
        }
    };

    const char* tile_of(const float* sums, int64_t stride, int i) const {
        return reinterpret_cast<const char*>(sums) + i / C * first_ * stride + i % C * kTileBytes;
    }

    const int64_t first_;  // rows of the first group
    const Shapes shapes_;
    const Configured configured_;
};

// Multiplies the partial last chunk, padded with zeros. That changes no sum except that negative
// zero becomes positive.
template <int R, int C>
__attribute__((noinline)) void add_rest(const TileBlock<R, C>& block, int64_t rows, const char* x,
                                        int64_t x_stride, const char* const (&columns)[C],
                                        int64_t stride, int64_t units) {
    alignas(64) char own[R * kTileRows * kTileBytes] = {}, tiles[C][kChunk * kTileBytes] = {};
    const char* filled[C];
    for (int64_t row = 0; row < rows; ++row)
        std::memcpy(own + row * kTileBytes, x + row * x_stride, units * 4);
    for (int c = 0; c < C; ++c) {
        for (int64_t k = 0; k < units; ++k)
            std::memcpy(tiles[c] + k * kTileBytes, columns[c] + k * stride, kTileBytes);
        filled[c] = tiles[c];
    }
    block.add(own, kTileBytes, filled, kTileBytes);
}

// sums [rows, 16 * C] = x [rows, units] times C tiles. Operand strides in elements, sum strides in
// bytes. fetch(begin, end) is called before these units are multiplied, for prefetching.
template <int R, int C, typename Fetch>
void multiply_in_tiles(float* sums, int64_t sums_stride, int64_t rows, const BFloat16* x,
                       int64_t x_stride, const BFloat16* const (&tiles)[C], int64_t tile_step,
                       int64_t units, Fetch fetch) {
    const TileBlock<R, C> block(rows, kChunk);
    const int64_t row = x_stride * 2, step = tile_step * 2;
    const char *own = reinterpret_cast<const char*>(x), *columns[C];
    for (int c = 0; c < C; ++c) columns[c] = reinterpret_cast<const char*>(tiles[c]);
    block.clear();
    int64_t at = 0;
    for (; at + kChunk <= units; at += kChunk, own += kTileBytes) {
        fetch(at, at + kChunk);
        block.add(own, row, columns, step);
        for (int c = 0; c < C; ++c) columns[c] += kChunk * step;
    }
    if (at < units) add_rest<R, C>(block, rows, own, row, columns, step, units - at);
    block.store(sums, sums_stride);
}

}  // namespace

#endif
