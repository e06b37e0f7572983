// Rows times tiles of sixteen columns in tile registers, for as many rows as registers hold.
//
// A tile's units (tiles.h) are what a register holds of columns: sixteen pairs below each other, or fewer. One product of
// registers adds a chunk of units; `multiply` of tiles.h adds chunks in the same order, so results are the same bits.
#pragma once

#include <cstring>
#include <utility>

#include "tile_registers.h"
#include "tiles.h"

#if defined(TILE_REGISTERS)

namespace {

template <typename Body, int... kNumbers>
inline __attribute__((always_inline)) void count(Body body, std::integer_sequence<int, kNumbers...>) {
    (body(std::integral_constant<int, kNumbers>()), ...);
}

// Calls body(0), body(1), ... with numbers that are constants.
template <int kNumber, typename Body>
inline __attribute__((always_inline)) void count(Body body) {
    count(body, std::make_integer_sequence<int, kNumber>());
}

// Sums of R groups of rows by C tiles, while it lives: R * C registers, and what is left for operands. Strides in bytes.
template <int R, int C>
class TileBlock {
public:
    TileBlock(int64_t rows, int64_t depth) : first_((rows + R - 1) / R), shapes_(rows, first_, depth), configured_(shapes_) {}

    void clear() const {
        count<R * C>([](auto i) { tile::zero<i>(); });
    }
    void load(const float* sums, int64_t stride) const {
        count<R * C>([&](auto i) { tile::load<i>(place(sums, stride, i), stride); });
    }
    void store(float* sums, int64_t stride) const {
        count<R * C>([&](auto i) { tile::store<i>(const_cast<char*>(place(sums, stride, i)), stride); });
    }

    // Adds the products of the next `depth` units.
    void add(const void* x, int64_t x_stride, const char* const (&columns)[C], int64_t stride) const {
        count<R>([&](auto r) { tile::load<kX + r>(static_cast<const char*>(x) + r * first_ * x_stride, x_stride); });
        count<C>([&](auto c) {
            constexpr int column = kColumns + c % kAtOnce;
            tile::load<column>(columns[c], stride);
            count<R>([&](auto r) { tile::add_pairs<r * C + c, kX + r, column>(); });
        });
    }

private:
    static constexpr int kX = R * C, kColumns = kX + R, kAtOnce = 8 - kColumns < C ? 8 - kColumns : C;

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

    const char* place(const float* sums, int64_t stride, int i) const {
        return reinterpret_cast<const char*>(sums) + i / C * first_ * stride + i % C * kTileBytes;
    }

    const int64_t first_;  // rows of the first group
    const Shapes shapes_;
    const Configured configured_;
};

// The chunk behind the last whole one, filled up with zeros: they change no sum, but that a negative zero becomes a positive.
template <int R, int C>
__attribute__((noinline)) void add_rest(const TileBlock<R, C>& block, int64_t rows, const char* x, int64_t x_stride,
                                        const char* const (&columns)[C], int64_t stride, int64_t units) {
    alignas(64) char own[R * kTileRows * kTileBytes] = {}, tiles[C][kChunk * kTileBytes] = {};
    const char* filled[C];
    for (int64_t row = 0; row < rows; ++row) std::memcpy(own + row * kTileBytes, x + row * x_stride, units * 4);
    for (int c = 0; c < C; ++c) {
        for (int64_t k = 0; k < units; ++k) std::memcpy(tiles[c] + k * kTileBytes, columns[c] + k * stride, kTileBytes);
        filled[c] = tiles[c];
    }
    block.add(own, kTileBytes, filled, kTileBytes);
}

// sums [rows, 16 * C] = x [rows, units] times C tiles. Strides of operands in numbers, of sums in bytes; fetch(begin, end) is
// called before those units are multiplied, to fetch what comes next.
template <int R, int C, typename Fetch>
void multiply_in_tiles(float* sums, int64_t sums_stride, int64_t rows, const BFloat16* x, int64_t x_stride,
                       const BFloat16* const (&tiles)[C], int64_t tile_step, int64_t units, Fetch fetch) {
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
