// Linear layers whose weights are integers with a scale for each group of inputs, as a table of functions: one table per
// instruction set, all from quantized.cpp.
#pragma once

#include <cstdint>

#include "linear.h"

// How a weight is kept: so many bits a number, and so many neighbours of a row, a multiple of eight, that share a scale.
struct Rounding {
    int64_t bits;  // 8 or 4
    int64_t group;
    bool has_halves;  // scales are float16; else bfloat16
};

struct QuantizedOps {
    // Rounds rows from `first` on of a weight that has `rows`; `dtype` is the source's.
    void (*pack)(void* to, const void* from, int64_t first, Matrix source, int64_t rows, Rounding kept, int32_t dtype);
    // The same for integers from -8 or -128 on, row_stride apart, with scales [source.rows, groups].
    void (*place)(void* to, const int8_t* codes, const void* scales, int64_t first, Matrix source, int64_t rows,
                  Rounding kept);
    // The rows `ids` of a weight [rows, width], plain.
    void (*unpack)(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width, int64_t rows,
                   Rounding kept, int32_t dtype);
    // x and result are plain rows of `dtype`; there is no bias.
    void (*product)(const Product& p, Rounding kept, int32_t dtype);
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
