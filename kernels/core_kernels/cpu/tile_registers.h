// The eight tile registers of a processor with AMX, each of up to sixteen rows of up to 64 bytes, and their products.
//
// Two implementations with one meaning: the instructions, and for machines that lack them (and for tests on all others)
// what the manual says the instructions do, in tile_emulation.h.
#pragma once

#include <cstdint>

namespace {

constexpr int64_t kTileRows = 16, kTileBytes = 64;

#if defined(TILE_REGISTERS)

constexpr bool kTileRegisters = true;

// What registers hold, in the form that the processor reads: none until it is said.
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
#include "tile_emulation.h"
namespace {
#else
namespace tile {

// Written as text because the compiler's own functions take no register number from a template.
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
// Pairs of bfloat16: for each sum the first numbers' products one after the other, the second ones' likewise, both added,
// then added to the sum.
template <int kSums, int kRows, int kColumns>
inline void add_pairs() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kRows), "i"(kColumns));
}
// Four bytes, of rows signed and of columns unsigned, to sums of 32 bits.
template <int kSums, int kRows, int kColumns>
inline void add_bytes() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kRows), "i"(kColumns));
}

}  // namespace tile
#endif

// Registers configured while it lives, and free for others' use afterwards: libraries beside this one configure them, too.
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
