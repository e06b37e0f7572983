// GEMM with weights of eight-bit floats, or four-bit codes of a table of sixteen floats, with a
// scale per group of inputs. A table of functions, one table per instruction set, all from
// floats.cpp.
#pragma once

#include <cstdint>

#include "cpu/gemm/linear.h"
#include "cpu/variant.h"

enum FloatKind : int32_t {
    kE4M3 = 0,  // "fn": no infinities, one NaN of either sign
    kE5M2 = 1,
    kTabled = 2,  // four-bit codes
};

enum FloatScales : int32_t {
    kWhole = 0,   // float32
    kShares = 1,  // int16 fractions of a float32 factor per row
    kPowers = 2,  // powers of two by exponent (vectors.h)
};

// Storage format of a weight: kind of float, group size (a multiple of eight), kind of scales, and
// the table of a table-coded weight.
struct FloatFormat {
    int32_t kind;
    int64_t group;
    int64_t scales;                // FloatScales
    const float* table = nullptr;  // sixteen entries

    int64_t bits() const { return kind == kTabled ? 4 : 8; }
};

struct FloatOps {
    // Packs rows from `first` of a weight with `rows` rows: one code per byte, row_stride apart,
    // scales [source.rows, groups], and row factors if scales are fractions, else null.
    void (*pack_codes)(void* to, const uint8_t* codes, const void* scales, const float* factors,
                       int64_t first, Matrix source, int64_t rows, FloatFormat format);
    // Unpacks the rows `ids` of a weight [rows, width].
    void (*unpack)(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width,
                   int64_t rows, FloatFormat format, int32_t dtype);
    // x and result are plain rows of `dtype`; bfloat16 x has an even number of columns; no bias.
    void (*product)(const Product& p, FloatFormat format, int32_t dtype);
    // Grouped GEMM: weights are consecutive in memory; the first counts[0] rows of x use the first
    // weight, and so on.
    void (*grouped)(const Product& p, const int64_t* counts, int64_t groups, FloatFormat format,
                    int32_t dtype);
};

VARIANT_TABLES(FloatOps, floats_);
