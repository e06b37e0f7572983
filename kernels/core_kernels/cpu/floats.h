// Linear layers whose weights are floats of eight bits, or codes of four bits of a table of sixteen floats, with a scale for
// each group of inputs, as a table of functions: one table per instruction set, all from floats.cpp.
#pragma once

#include <cstdint>

#include "linear.h"

enum FloatKind : int32_t {
    kE4M3 = 0,  // "fn": without infinities, one NaN of either sign
    kE5M2 = 1,
    kTabled = 2,  // codes of four bits
};

enum FloatScales : int32_t {
    kWhole = 0,   // float32
    kShares = 1,  // int16, shares of a float32 that each row has
    kPowers = 2,  // powers of two by their exponents (vectors.h)
};

// How a weight is kept: which floats, how many neighbours of a row, a multiple of eight, share a scale, how scales are kept, and
// what each code stands for where that is a table's.
struct FloatFormat {
    int32_t kind;
    int64_t group;
    int64_t scales;  // FloatScales
    const float* table = nullptr;  // sixteen

    int64_t bits() const { return kind == kTabled ? 4 : 8; }
};

struct FloatOps {
    // Puts rows from `first` on of a weight that has `rows`: codes, a byte each, row_stride apart, scales [source.rows,
    // groups], and the factors of rows where scales are shares of them, else null.
    void (*place)(void* to, const uint8_t* codes, const void* scales, const float* factors, int64_t first, Matrix source,
                  int64_t rows, FloatFormat kept);
    // The rows `ids` of a weight [rows, width], plain.
    void (*unpack)(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width, int64_t rows,
                   FloatFormat kept, int32_t dtype);
    // x and result are plain rows of `dtype`, x of bfloat16 with an even number of columns; there is no bias.
    void (*product)(const Product& p, FloatFormat kept, int32_t dtype);
    // As many weights as groups, one after the other: the first counts[0] rows of x are for the first, and so on.
    void (*grouped)(const Product& p, const int64_t* counts, int64_t groups, FloatFormat kept, int32_t dtype);
};

extern const FloatOps floats_generic;
#if defined(__x86_64__)
extern const FloatOps floats_avx2;
extern const FloatOps floats_avx512;
extern const FloatOps floats_avx512_bf16;
extern const FloatOps floats_amx;
extern const FloatOps floats_amx_emulated;
#endif
