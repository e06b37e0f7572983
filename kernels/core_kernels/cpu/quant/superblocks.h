// GEMM with GGUF blocks. A table of functions, one table per instruction set, all from
// superblocks.cpp.
#pragma once

#include <cstdint>

#include "cpu/gemm/linear.h"
#include "cpu/variant.h"

// Block types by their GGUF numbers.
enum BlockKind : int32_t {
    kQ4_0 = 2,
    kQ4_1 = 3,
    kQ5_0 = 6,
    kQ5_1 = 7,
    kQ8_0 = 8,
    kQ2_K = 10,
    kQ3_K = 11,
    kQ4_K = 12,
    kQ5_K = 13,
    kQ6_K = 14,
};

// Rows of blocks in file order; strides in bytes.
struct BlockRows {
    const uint8_t* from;
    int64_t rows, blocks;  // blocks per row
    int64_t row_stride;
};

// Block kind of a weight, and the bits of quantized x: 16 or 8.
struct Blocks {
    int32_t kind, x_bits;
};

struct SuperblockOps {
    // Packs rows from `first` of a weight with `rows` rows. Returns 1, and writes nothing, for an
    // unsupported kind.
    int32_t (*pack)(void* to, BlockRows source, int64_t first, int64_t rows, int32_t kind);
    // Unpacks the rows `ids` of a weight [rows, width].
    void (*unpack)(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width,
                   int64_t rows, int32_t kind, int32_t dtype);
    // x and result are plain rows of `dtype`; no bias.
    void (*product)(const Product& p, Blocks blocks, int32_t dtype);
    // Grouped GEMM: weights are consecutive in memory; the first counts[0] rows of x use the first
    // weight, and so on.
    void (*grouped)(const Product& p, const int64_t* counts, int64_t groups, Blocks blocks,
                    int32_t dtype);
};

VARIANT_TABLES(SuperblockOps, superblocks_);
