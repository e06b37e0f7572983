// What adapters of low rank add to the products of a step's rows, as a table of functions: one table per instruction set.
#pragma once

#include <cstdint>

#include "../row_ops.h"

// Of one adapter, the second factor for some columns of a product: panels of 64 columns, the last one of what is left in
// whole pairs of vectors; in a panel the numbers of one rank follow each other, rank after rank.
struct LowRankPart {
    const void* b;
    int64_t first, width;  // columns
    int64_t rank;
};

// What one adapter adds to one layer. The first factors of its parts lie behind each other: blocks of four ranks, the last
// one of what is left; in a block 32 inputs of each rank, then the next 32, filled up with zeros.
struct LowRank {
    const void* a;  // null: nothing of low rank
    const LowRankPart* parts;
    const void* bias;  // of all columns, or null
    int64_t rank;      // of all parts
    int64_t num_parts;
};

// out [rows, columns] += what the adapter of each row makes of x [rows, in]. Strides in elements.
struct Adapted {
    void* out;
    const void* x;
    const int32_t* adapters;  // of each row: a number of `table`, or -1
    const LowRank* table;
    int64_t num_adapters;
    int64_t rows, in, columns;
    int64_t x_stride, out_stride;
};

struct LowRankOps {
    void (*add)(const Adapted& a, int32_t dtype);
};

extern const LowRankOps low_rank_generic;
#if defined(__x86_64__)
extern const LowRankOps low_rank_avx2;
extern const LowRankOps low_rank_avx512;
extern const LowRankOps low_rank_avx512_bf16;
#endif
