// LoRA deltas of a step's rows as a table of functions, one table per instruction set.
#pragma once

#include <cstdint>

#include "cpu/elementwise/row_ops.h"
#include "cpu/variant.h"

// The B factor of one adapter for some columns of a product: panels of 64 columns (the last one:
// whole pairs of vectors), in a panel rank after rank.
struct LowRankPart {
    const void* b;
    int64_t first, width;  // columns
    int64_t rank;
};

// The delta of one adapter for one layer. The A factors of its parts are concatenated: blocks of
// four ranks, in a block 32 inputs of each rank, then the next 32, padded with zeros.
struct LowRank {
    const void* a;  // null: no factors
    const LowRankPart* parts;
    const void* bias;  // of all columns, or null
    int64_t rank;      // of all parts
    int64_t num_parts;
};

// out [rows, columns] += delta of each row's adapter for x [rows, in]. Strides in elements.
struct Adapted {
    void* out;
    const void* x;
    const int32_t* adapters;  // index into `table` per row, or -1
    const LowRank* table;
    int64_t num_adapters;
    int64_t rows, in, columns;
    int64_t x_stride, out_stride;
};

struct LowRankOps {
    void (*add)(const Adapted& a, int32_t dtype);
};

VARIANT_TABLES(LowRankOps, low_rank_);
