// GEMM with packed weights as a table of functions, one table per instruction set, all from
// linear.cpp.
#pragma once

#include <cstdint>

#include "cpu/elementwise/row_ops.h"
#include "cpu/variant.h"

// Strides in elements.
struct Matrix {
    int64_t rows, width;
    int64_t row_stride, column_stride;
};

// result [rows, out] = x [rows, in] @ weight.T + bias. For bfloat16, x has an even number of
// columns.
struct Product {
    void* result;
    const void* x;
    const void* weight;
    const void* bias;  // or null
    int64_t rows, out, in;
    int64_t x_stride, result_stride;
};

struct LinearOps {
    // Packs rows from `first` of a weight with `rows` rows.
    void (*pack)(void* to, const void* from, int64_t first, Matrix source, int64_t rows,
                 int32_t dtype);
    // Unpacks the rows `ids` of a packed weight [rows, width].
    void (*unpack)(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width,
                   int64_t rows, int32_t dtype);
    void (*product)(const Product& p, int32_t dtype);
    // The same with a plain weight of the given shape and strides.
    void (*plain_product)(const Product& p, Matrix weight, int32_t dtype);
    // Grouped GEMM: weights are consecutive in memory; the first counts[0] rows of x use the first
    // weight, and so on.
    void (*grouped)(const Product& p, const int64_t* counts, int64_t groups, int32_t dtype);
};

VARIANT_TABLES(LinearOps, linear_);
