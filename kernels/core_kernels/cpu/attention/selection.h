// Selection of the tokens that a query attends to, as a table of functions, one table per
// instruction set, all from selection.cpp.
#pragma once

#include <cstdint>

#include "cpu/elementwise/row_ops.h"
#include "cpu/variant.h"

// Queries of one sequence and its index keys; strides in elements.
struct TokenSelection {
    int32_t* out;          // [queries, count]
    const void* query;     // [queries, heads, size], contiguous
    const float* weights;  // [queries, heads], contiguous
    const void* keys;      // [blocks, block_size, size], rows contiguous
    const int32_t* table;  // block table of the sequence
    const int64_t* seen;   // [queries]: number of keys that each query sees
    int64_t queries, heads, size, block_size, block_stride, row_stride, count;
};

// Keys of one sequence in a cache of the unit layout with one KV head (attention.h).
struct KeyCopy {
    void* to;  // sixteen keys a tile; the last tile is filled with the last key
    const void* cache;
    const int32_t* table;
    const int32_t* positions;  // [count]
    int64_t count, block_size, size;
};

struct SelectionOps {
    // Writes the positions of the highest scores, ascending. A score is the sum over heads of
    // weight * relu(query . key). Of equal scores the first ones are selected, NaN is the lowest.
    void (*select)(const TokenSelection& a, int32_t dtype);
    void (*copy_keys)(const KeyCopy& a, int32_t dtype);
};

VARIANT_TABLES(SelectionOps, selection_);
