// Operations on rows as a table of functions, one table per instruction set, all from row_ops.cpp.
#pragma once

#include <cstdint>

#include "cpu/variant.h"

// Element types of tensors; the values are part of the C ABI.
enum DType : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

enum Activation : int32_t { kSilu = 0, kGeluTanh = 1 };

// A grid of rows [outer, inner, width]; strides in elements, the last dimension contiguous.
struct Grid {
    int64_t outer, inner, width;
    int64_t outer_stride, inner_stride;
};

struct RowOps {
    void (*rms_norm)(void* out, const void* x, const void* weight, Grid grid, float eps,
                     float offset, int32_t dtype);
    void (*add_rms_norm)(void* x, void* residual, const void* weight, Grid grid,
                         int64_t residual_stride, float eps, float offset, int32_t dtype);
    // `width` of the grid is that of the result; a row of x holds gate, then up.
    void (*gated)(void* out, const void* x, Grid grid, int32_t activation, int32_t dtype);
    // In place. Grid of tokens, heads, head size.
    void (*rotary)(void* x, const float* cos_sin, const int64_t* positions, Grid grid,
                   int64_t rotary_size, int32_t interleaved, int32_t dtype);
    // Converts to float32.
    void (*widen)(float* out, const void* x, Grid grid, int32_t dtype);
};

VARIANT_TABLES(RowOps, row_ops_);
