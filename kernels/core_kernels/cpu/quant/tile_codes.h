// Integer products in tile registers: sixteen rows of two-byte x by two tiles of columns.
//
// An 8-bit weight word (codes.h) is what a register holds per column: four unsigned inputs. 4-bit
// weights are widened a group at a time. Sums are exact, so they equal those of vector registers.
#pragma once

#include <cstring>

#include "cpu/quant/codes.h"
#include "cpu/gemm/tile_registers.h"

#if defined(TILE_REGISTERS)

namespace {

// Returns the largest number of quads per tile product that divides a group. Groups are multiples
// of eight.
inline int64_t depth_of(int64_t group) {
    int64_t depth = kTileRows;
    while (group / kQuad % depth) depth -= 2;
    return depth;
}

// Tile registers, configured during its lifetime.
class ByteBlock {
public:
    explicit ByteBlock(int64_t depth) : shapes_(depth), configured_(shapes_) {}

    static void clear() { tile::zero<0>(), tile::zero<1>(), tile::zero<2>(), tile::zero<3>(); }

    // Adds the products of the next `depth` quads. Strides in bytes.
    template <bool kHasHigh>
    static void add(const int8_t* high, const int8_t* low, int64_t x_stride, const uint8_t* first,
                    const uint8_t* second, int64_t stride) {
        tile::load<6>(first, stride);
        tile::load<7>(second, stride);
        if constexpr (kHasHigh) {
            tile::load<4>(high, x_stride);
            tile::add_bytes<0, 4, 6>();
            tile::add_bytes<1, 4, 7>();
        }
        tile::load<5>(low, x_stride);
        tile::add_bytes<2, 5, 6>();
        tile::add_bytes<3, 5, 7>();
    }

    // Stores the sums [row][tile] of both bytes.
    static void store(Ints (&high)[kTileRows][2], Ints (&low)[kTileRows][2]) {
        tile::store<0>(&high[0][0], sizeof high[0]);
        tile::store<1>(&high[0][1], sizeof high[0]);
        tile::store<2>(&low[0][0], sizeof low[0]);
        tile::store<3>(&low[0][1], sizeof low[0]);
    }

private:
    struct Shapes : TileShapes {
        explicit Shapes(int64_t depth) {
            for (int sums = 0; sums < 4; ++sums) set(sums, kTileRows, kTileBytes);
            for (int x = 4; x < 6; ++x) set(x, kTileRows, depth * kQuad);
            for (int columns = 6; columns < 8; ++columns) set(columns, depth, kTileBytes);
        }
    };

    const Shapes shapes_;
    const Configured configured_;
};

// Widens `inputs` inputs to one quad per word, padded with zeros to `quads` quads.
template <int kCode>
void widen(uint8_t* to, const uint8_t* from, int64_t columns, int64_t inputs, int64_t quads) {
    const int64_t row = columns * sizeof(uint32_t);
    uint8_t* const end = to + quads * row;
    for (int64_t k = 0; k < inputs; k += Codes<kCode>::kInputs, from += row)
        for (int quad = 0; quad < Codes<kCode>::kInputs / kQuad; ++quad, to += row)
            for (int64_t at = 0; at < row; at += sizeof(Words)) {
                const Words own = Codes<kCode>::quad(load_words(from + at), quad);
                std::memcpy(to + at, &own, sizeof own);
            }
    std::memset(to, 0, end - to);
}

}  // namespace

#endif
