// Sampling from logits as a table of functions, one table per instruction set, all from
// sampling.cpp.
#pragma once

#include <cstdint>

#include "cpu/variant.h"

// Logits [rows, width] float32; row_stride in elements.
struct Logits {
    const float* values;
    int64_t rows, width, row_stride;
};

struct SamplingOps {
    // Maximum logit and its index per row: the lowest index of equals; a NaN wins.
    void (*argmax)(float* values, int64_t* tokens, Logits logits);
    // Samples one token per row from its softmax: inverse of the cumulative distribution at the
    // row's uniform number.
    void (*sample)(int64_t* tokens, Logits logits, const double* uniform);
};

VARIANT_TABLES(SamplingOps, sampling_);
