// Tile registers in plain C++, as the manual describes the instructions: for tests, never chosen by itself.
//
// Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: LDTILECFG, TILELOADD, TDPBF16PS, TDPBSUD. Products
// of bfloat16 are added by fused operations that round to nearest even, take subnormal numbers for zero and make none. Where
// the processor would fault, the program ends.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "tile_registers.h"

namespace {
namespace tile {

struct Registers {
    TileShapes shapes;
    bool configured = false;
    alignas(64) uint8_t data[8][kTileRows][kTileBytes] = {};
};

thread_local Registers registers;

inline void must(bool holds) {
    if (!holds) std::abort();
}

inline void configure(const TileShapes& shapes) {
    must(shapes.palette == 1);
    for (int i = 0; i < 8; ++i) must(shapes.rows[i] <= kTileRows && shapes.bytes[i] <= kTileBytes && shapes.bytes[i] % 4 == 0);
    registers = Registers();
    registers.shapes = shapes;
    registers.configured = true;
}

inline void release() { registers = Registers(); }

template <int kTo>
inline void zero() {
    must(registers.configured && registers.shapes.rows[kTo]);
    std::memset(registers.data[kTo], 0, sizeof registers.data[kTo]);
}

template <int kTo>
inline void load(const void* from, int64_t stride) {
    zero<kTo>();
    for (int row = 0; row < registers.shapes.rows[kTo]; ++row)
        std::memcpy(registers.data[kTo][row], static_cast<const char*>(from) + row * stride, registers.shapes.bytes[kTo]);
}

template <int kFrom>
inline void store(void* to, int64_t stride) {
    must(registers.configured && registers.shapes.rows[kFrom]);
    for (int row = 0; row < registers.shapes.rows[kFrom]; ++row)
        std::memcpy(static_cast<char*>(to) + row * stride, registers.data[kFrom][row], registers.shapes.bytes[kFrom]);
}

// Whether rows times columns are sums of this shape; four bytes of a row meet one row of columns.
template <int kSums, int kRows, int kColumns>
inline void must_fit() {
    const TileShapes& s = registers.shapes;
    must(kSums != kRows && kSums != kColumns && kRows != kColumns && registers.configured);
    must(s.rows[kSums] && s.rows[kSums] == s.rows[kRows] && s.bytes[kSums] == s.bytes[kColumns]);
    must(s.rows[kColumns] && s.bytes[kRows] == 4 * s.rows[kColumns]);
}

inline float flushed(float value) { return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value; }

inline float first_of(uint32_t pair) {
    const uint32_t bits = pair << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return flushed(value);
}
inline float second_of(uint32_t pair) { return first_of(pair >> 16); }

template <int kSums, int kRows, int kColumns>
void add_pairs() {
    must_fit<kSums, kRows, kColumns>();
    constexpr int most = kTileBytes / 4;
    for (int row = 0; row < registers.shapes.rows[kSums]; ++row) {
        uint32_t x[most], columns[most];
        float sums[most], first[most] = {}, second[most] = {};
        std::memcpy(x, registers.data[kRows][row], sizeof x);
        for (int k = 0; k < registers.shapes.rows[kColumns]; ++k) {
            std::memcpy(columns, registers.data[kColumns][k], sizeof columns);
            for (int n = 0; n < most; ++n) {
                first[n] = flushed(std::fma(first_of(x[k]), first_of(columns[n]), first[n]));
                second[n] = flushed(std::fma(second_of(x[k]), second_of(columns[n]), second[n]));
            }
        }
        std::memcpy(sums, registers.data[kSums][row], sizeof sums);
        for (int n = 0; n < most; ++n) sums[n] = flushed(flushed(sums[n]) + flushed(first[n] + second[n]));
        std::memcpy(registers.data[kSums][row], sums, registers.shapes.bytes[kSums]);
    }
}

template <int kSums, int kRows, int kColumns>
void add_bytes() {
    must_fit<kSums, kRows, kColumns>();
    for (int row = 0; row < registers.shapes.rows[kSums]; ++row) {
        uint32_t sums[kTileBytes / 4];
        std::memcpy(sums, registers.data[kSums][row], sizeof sums);
        for (int k = 0; k < registers.shapes.rows[kColumns]; ++k)
            for (int byte = 0; byte < kTileBytes; ++byte) {
                const int x = static_cast<int8_t>(registers.data[kRows][row][4 * k + byte % 4]);
                sums[byte / 4] += static_cast<uint32_t>(x * registers.data[kColumns][k][byte]);
            }
        std::memcpy(registers.data[kSums][row], sums, registers.shapes.bytes[kSums]);
    }
}

}  // namespace tile
}  // namespace
