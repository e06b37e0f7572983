// Elementwise operations and layer norm as a table of functions, one table per instruction set.
#pragma once

#include <cstdint>

#include "cpu/elementwise/row_ops.h"
#include "cpu/variant.h"

enum Kind : int32_t {
    kAdd = 0,
    kMultiply = 1,
    kRelu = 2,
    kSquare = 3,
    kGelu = 4,
    kGeluByTanh = 5,
    kSiluOf = 6,
    kSigmoidOf = 7
};

// out [rows, width] contiguous; a and b have constant row strides. b is contiguous within a row, or
// one number per row (b_column 0); without b the operand is `scalar`.
struct Elements {
    void* out;
    const void* a;
    const void* b;  // or null
    int64_t rows, width, out_row, a_row, b_row, b_column;
    float scalar;
};

struct ElementOps {
    void (*elementwise)(const Elements& e, int32_t kind, int32_t dtype);
    // (x - mean) / deviation * weight + bias; weight and bias may be null.
    void (*layer_norm)(void* out, const void* x, const void* weight, const void* bias, Grid grid,
                       float eps, int32_t dtype);
};

VARIANT_TABLES(ElementOps, element_ops_);
