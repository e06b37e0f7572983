// Tile registers (AMX) in plain C++, for tests; never selected automatically.
//
// Follows the Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: LDTILECFG,
// TILELOADD, TDPBF16PS, TDPBSUD. Products of bfloat16 are fused multiply-adds that round to nearest
// even; subnormal inputs and results are zero. The program aborts where the processor would fault.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "cpu/gemm/tile_registers.h"

namespace {
namespace tile {

struct Registers {
    TileShapes shapes;
    bool configured = false;
    alignas(64) uint8_t data[8][kTileRows][kTileBytes] = {};
};

thread_local Registers registers;

inline void require(bool holds) {
    if (!holds) std::abort();
}

inline void configure(const TileShapes& shapes) {
    require(shapes.palette == 1);
    for (int i = 0; i < 8; ++i)
        require(shapes.rows[i] <= kTileRows && shapes.bytes[i] <= kTileBytes &&
                shapes.bytes[i] % 4 == 0);
    registers = Registers();
    registers.shapes = shapes;
    registers.configured = true;
}

inline void release() { registers = Registers(); }

// Not templates: many kernels call these operations, and each is compiled once.
#define ONCE __attribute__((noinline)) inline

ONCE void zero_one(int to) {
    require(registers.configured && registers.shapes.rows[to]);
    std::memset(registers.data[to], 0, sizeof registers.data[to]);
}

ONCE void load_one(int to, const void* from, int64_t stride) {
    zero_one(to);
    for (int row = 0; row < registers.shapes.rows[to]; ++row)
        std::memcpy(registers.data[to][row], static_cast<const char*>(from) + row * stride,
                    registers.shapes.bytes[to]);
}

ONCE void store_one(int from, void* to, int64_t stride) {
    require(registers.configured && registers.shapes.rows[from]);
    for (int row = 0; row < registers.shapes.rows[from]; ++row)
        std::memcpy(static_cast<char*>(to) + row * stride, registers.data[from][row],
                    registers.shapes.bytes[from]);
}

// Aborts unless the shapes fit: four bytes of a row multiply one row of columns.
inline void require_shapes(int sums, int rows, int columns) {
    const TileShapes& s = registers.shapes;
    require(sums != rows && sums != columns && rows != columns && registers.configured);
    require(s.rows[sums] && s.rows[sums] == s.rows[rows] && s.bytes[sums] == s.bytes[columns]);
    require(s.rows[columns] && s.bytes[rows] == 4 * s.rows[columns]);
}

inline float flush_denormal(float value) {
    return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value;
}

inline float first_of(uint32_t pair) {
    const uint32_t bits = pair << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return flush_denormal(value);
}
inline float second_of(uint32_t pair) { return first_of(pair >> 16); }

ONCE void add_pairs_to(int to, int of, int by) {
    require_shapes(to, of, by);
    constexpr int kWords = kTileBytes / 4;
    for (int row = 0; row < registers.shapes.rows[to]; ++row) {
        uint32_t x[kWords], columns[kWords];
        float sums[kWords], first[kWords] = {}, second[kWords] = {};
        std::memcpy(x, registers.data[of][row], sizeof x);
        for (int k = 0; k < registers.shapes.rows[by]; ++k) {
            std::memcpy(columns, registers.data[by][k], sizeof columns);
            for (int n = 0; n < kWords; ++n) {
                first[n] = flush_denormal(std::fma(first_of(x[k]), first_of(columns[n]), first[n]));
                second[n] =
                    flush_denormal(std::fma(second_of(x[k]), second_of(columns[n]), second[n]));
            }
        }
        std::memcpy(sums, registers.data[to][row], sizeof sums);
        for (int n = 0; n < kWords; ++n)
            sums[n] =
                flush_denormal(flush_denormal(sums[n]) + flush_denormal(first[n] + second[n]));
        std::memcpy(registers.data[to][row], sums, registers.shapes.bytes[to]);
    }
}

ONCE void add_bytes_to(int to, int of, int by) {
    require_shapes(to, of, by);
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
