// The eight AMX tile registers, up to sixteen rows of 64 bytes each, and their products.
//
// Two implementations: the instructions, and an emulation for tests and other machines
// (tile_emulation.h).
#pragma once

#include <cstdint>

namespace {

constexpr int64_t kTileRows = 16, kTileBytes = 64;

#if defined(TILE_REGISTERS)

constexpr bool kTileRegisters = true;

// Tile configuration as LDTILECFG reads it.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int number, int64_t its_rows, int64_t row_bytes) {
        rows[number] = static_cast<uint8_t>(its_rows);
        bytes[number] = static_cast<uint16_t>(row_bytes);
    }
};

#if defined(EMULATED_TILES)
}  // namespace
#include "cpu/gemm/tile_emulation.h"
namespace {
#else
namespace tile {

// Inline assembly, because the intrinsics take no register number from a template.
inline void configure(const TileShapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
inline void release() { asm volatile("tilerelease"); }

template <int kTo>
inline void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTo));
}
template <int kTo>
inline void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTo) : "memory");
}
template <int kFrom>
inline void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kFrom) : "memory");
}
// Adds products of bfloat16 pairs: sums the first products and the second products separately, adds
// both, then adds them to the sum.
template <int kSums, int kRows, int kColumns>
inline void add_pairs() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
                 :
                 : "i"(kSums), "i"(kRows), "i"(kColumns));
}
// Adds products of four bytes (rows signed, columns unsigned) to 32-bit sums.
template <int kSums, int kRows, int kColumns>
inline void add_bytes() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kRows), "i"(kColumns));
}

}  // namespace tile
#endif

// Configures the tile registers during its lifetime and releases them afterwards: other libraries
// configure them too.
class Configured {
public:
    explicit Configured(const TileShapes& shapes) { tile::configure(shapes); }
    ~Configured() { tile::release(); }
    Configured(const Configured&) = delete;
};

#else
constexpr bool kTileRegisters = false;
#endif

}  // namespace
