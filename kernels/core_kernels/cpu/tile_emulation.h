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

// Registers by number: the operations below are called by many kernels, and are compiled once.
#define ONCE __attribute__((noinline)) inline

ONCE void zero_one(int to) {
    must(registers.configured && registers.shapes.rows[to]);
    std::memset(registers.data[to], 0, sizeof registers.data[to]);
}

ONCE void load_one(int to, const void* from, int64_t stride) {
    zero_one(to);
    for (int row = 0; row < registers.shapes.rows[to]; ++row)
        std::memcpy(registers.data[to][row], static_cast<const char*>(from) + row * stride, registers.shapes.bytes[to]);
}

ONCE void store_one(int from, void* to, int64_t stride) {
    must(registers.configured && registers.shapes.rows[from]);
    for (int row = 0; row < registers.shapes.rows[from]; ++row)
        std::memcpy(static_cast<char*>(to) + row * stride, registers.data[from][row], registers.shapes.bytes[from]);
}

// Whether rows times columns are sums of this shape; four bytes of a row meet one row of columns.
inline void must_fit(int sums, int rows, int columns) {
    const TileShapes& s = registers.shapes;
    must(sums != rows && sums != columns && rows != columns && registers.configured);
    must(s.rows[sums] && s.rows[sums] == s.rows[rows] && s.bytes[sums] == s.bytes[columns]);
    must(s.rows[columns] && s.bytes[rows] == 4 * s.rows[columns]);
}

inline float flushed(float value) { return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value; }

inline float first_of(uint32_t pair) {
    const uint32_t bits = pair << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return flushed(value);
}
inline float second_of(uint32_t pair) { return first_of(pair >> 16); }

ONCE void add_pairs_to(int to, int of, int by) {
    must_fit(to, of, by);
    constexpr int most = kTileBytes / 4;
    for (int row = 0; row < registers.shapes.rows[to]; ++row) {
        uint32_t x[most], columns[most];
        float sums[most], first[most] = {}, second[most] = {};
        std::memcpy(x, registers.data[of][row], sizeof x);
        for (int k = 0; k < registers.shapes.rows[by]; ++k) {
            std::memcpy(columns, registers.data[by][k], sizeof columns);
            for (int n = 0; n < most; ++n) {
                first[n] = flushed(std::fma(first_of(x[k]), first_of(columns[n]), first[n]));
                second[n] = flushed(std::fma(second_of(x[k]), second_of(columns[n]), second[n]));
            }
        }
        std::memcpy(sums, registers.data[to][row], sizeof sums);
        for (int n = 0; n < most; ++n) sums[n] = flushed(flushed(sums[n]) + flushed(first[n] + second[n]));
        std::memcpy(registers.data[to][row], sums, registers.shapes.bytes[to]);
    }
}

ONCE void add_bytes_to(int to, int of, int by) {
    must_fit(to, of, by);
    for (int row = 0; row < registers.shapes.rows[to]; ++row) {
        uint32_t sums[kTileBytes / 4];
        std::memcpy(sums, registers.data[to][row], sizeof sums);
        for (int k = 0; k < registers.shapes.rows[by]; ++k)
            for (int byte = 0; byte < kTileBytes; ++byte) {
                const int x = static_cast<int8_t>(registers.data[of][row][4 * k + byte % 4]);
                sums[byte / 4] += static_cast<uint32_t>(x * registers.data[by][k][byte]);
            }
        std::memcpy(registers.data[to][row], sums, registers.shapes.bytes[to]);
    }
}

#undef ONCE

template <int kTo>
inline void zero() {
    zero_one(kTo);
}

template <int kTo>
inline void load(const void* from, int64_t stride) {
    load_one(kTo, from, stride);
}

template <int kFrom>
inline void store(void* to, int64_t stride) {
    store_one(kFrom, to, stride);
}

template <int kSums, int kRows, int kColumns>
inline void add_pairs() {
    add_pairs_to(kSums, kRows, kColumns);
}

template <int kSums, int kRows, int kColumns>
inline void add_bytes() {
    add_bytes_to(kSums, kRows, kColumns);
}

}  // namespace tile
}  // namespace
