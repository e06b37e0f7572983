// GEMM with integer weights and a scale per group of inputs. A table of functions, one table per
// instruction set, all from quantized.cpp.
#pragma once

#include <cstdint>

#include "cpu/gemm/linear.h"
#include "cpu/variant.h"

enum CodeKind : int32_t {
    kInt4 = 4,
    kInt8 = 8,
    kFloat4 = 12,  // four-bit floats (E2M1), doubled
};

enum ScaleKind : int64_t {
    kBFloat16Scales = 0,
    kFloat16Scales = 1,
    // One byte each:
    kByteScales = 2,   // E4M3, with a float32 factor per row
    kPowerScales = 3,  // powers of two by exponent (vectors.h)
};

enum ZeroKind : int64_t {
    kNoZeros = 0,
    kIntZeros = 1,    // int16
    kFloatZeros = 2,  // float16
};

// Storage format of a weight: kind of code, group size (a multiple of eight), kind of scales and
// zero points.
struct IntegerFormat {
    int64_t code;
    int64_t group;
    int64_t scales;       // ScaleKind
    int64_t zeros;        // ZeroKind, one zero point per group
    int64_t x_bits = 16;  // bits of quantized x: 16 with a scale per group, or
                          // 8 with one scale per row (8-bit weights only)
};

struct QuantizedOps {
    // Rounds rows from `first` of a weight without zero points that has `rows` rows; `dtype` is the
    // source's.
    void (*pack)(void* to, const void* from, int64_t first, Matrix source, int64_t rows,
                 IntegerFormat format, int32_t dtype);
    // Packs existing codes (from -8 or -128, or doubled FP4), row_stride apart, with scales and
    // zero points (or null) [source.rows, groups] of two bytes; `factors` are the row factors of
    // byte scales, or null.
    void (*pack_codes)(void* to, const int8_t* codes, const void* scales, const uint16_t* zeros,
                       const float* factors, int64_t first, Matrix source, int64_t rows,
                       IntegerFormat format);
    // Unpacks the rows `ids` of a weight [rows, width].
    void (*unpack)(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width,
                   int64_t rows, IntegerFormat format, int32_t dtype);
    // x and result are plain rows of `dtype`; no bias. `order`, or null: index into x for each
    // column.
    void (*product)(const Product& p, const int32_t* order, IntegerFormat format, int32_t dtype);
    // Grouped GEMM: weights are consecutive in memory; the first counts[0] rows of x use the first
    // weight, and so on.
    void (*grouped)(const Product& p, const int64_t* counts, int64_t groups, IntegerFormat format,
                    int32_t dtype);
};

VARIANT_TABLES(QuantizedOps, quantized_);
