// Linear layers whose weights are integers with a scale for each group of inputs, as a table of functions: one table per
// instruction set, all from quantized.cpp.
#pragma once

#include <cstdint>

#include "linear.h"

enum CodeKind : int32_t {
    kInt4 = 4,
    kInt8 = 8,
    kFloat4 = 12,  // four-bit floats (E2M1), twice as large
};

enum ScaleKind : int64_t {
    kBFloat16Scales = 0,
    kFloat16Scales = 1,
    // Of a byte:
    kByteScales = 2,  // floats of eight bits (E4M3), and for each row a float32 that multiplies all of its own
    kPowerScales = 3,  // powers of two by their exponents (vectors.h)
};

enum ZeroKind : int64_t {
    kNoZeros = 0,
    kIntZeros = 1,    // int16
    kFloatZeros = 2,  // float16
};

// How a weight is kept: what its codes are, and how many neighbours of a row, a multiple of eight, share a scale.
struct Rounding {
    int64_t code;
    int64_t group;
    int64_t scales;  // what those are
    int64_t zeros;   // of each group: none, an integer, or what is none
    int64_t x_bits = 16;  // of the integers that rows of x become: 16 with a scale for each group, or, for weights of eight
                          // bits, 8 with one for the row
};

struct QuantizedOps {
    // Rounds rows from `first` on of a weight of integers without zero points that has `rows`; `dtype` is the source's.
    void (*pack)(void* to, const void* from, int64_t first, Matrix source, int64_t rows, Rounding kept, int32_t dtype);
    // The same for integers from -8 or -128 on, or what four-bit floats are, row_stride apart, with scales and, or null, zero
    // points [source.rows, groups] of two bytes; `factors`, or null, are those of the rows whose scales are bytes.
    void (*place)(void* to, const int8_t* codes, const void* scales, const uint16_t* zeros, const float* factors,
                  int64_t first, Matrix source, int64_t rows, Rounding kept);
    // The rows `ids` of a weight [rows, width], plain.
    void (*unpack)(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width, int64_t rows,
                   Rounding kept, int32_t dtype);
    // x and result are plain rows of `dtype`; there is no bias. `order`, or null, names the number of x for each of a row.
    void (*product)(const Product& p, const int32_t* order, Rounding kept, int32_t dtype);
    // As many weights as groups, one after the other: the first counts[0] rows of x are for the first, and so on.
    void (*grouped)(const Product& p, const int64_t* counts, int64_t groups, Rounding kept, int32_t dtype);
};

extern const QuantizedOps quantized_generic;
#if defined(__x86_64__)
extern const QuantizedOps quantized_avx2;
extern const QuantizedOps quantized_avx512;
extern const QuantizedOps quantized_avx512_bf16;
extern const QuantizedOps quantized_amx;
extern const QuantizedOps quantized_amx_emulated;
#endif
