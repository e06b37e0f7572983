// Linear layers whose weights are blocks of GGUF files, as a table of functions: one table per instruction set, all from
// superblocks.cpp.
#pragma once

#include <cstdint>

#include "linear.h"

// Types of blocks by their numbers in GGUF files.
enum BlockKind : int32_t {
    kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ2_K = 10, kQ3_K = 11, kQ4_K = 12, kQ5_K = 13, kQ6_K = 14,
};

// Rows of blocks as a file has them, one block of a row after the other; strides in bytes.
struct BlockRows {
    const uint8_t* from;
    int64_t rows, blocks;  // blocks of a row
    int64_t row_stride;
};

// What a weight's blocks are, and how many bits a row of x is rounded to for a product with them: 16, or 8.
struct Blocks {
    int32_t kind, x_bits;
};

struct SuperblockOps {
    // Puts rows from `first` on of a weight that has `rows`. Returns 1, and writes nothing, for a kind that is not kept.
    int32_t (*pack)(void* to, BlockRows source, int64_t first, int64_t rows, int32_t kind);
    // The rows `ids` of a weight [rows, width], plain.
    void (*unpack)(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width, int64_t rows,
                   int32_t kind, int32_t dtype);
    // x and result are plain rows of `dtype`; there is no bias.
    void (*product)(const Product& p, Blocks blocks, int32_t dtype);
    // As many weights as groups, one after the other: the first counts[0] rows of x are for the first, and so on.
    void (*grouped)(const Product& p, const int64_t* counts, int64_t groups, Blocks blocks, int32_t dtype);
};

extern const SuperblockOps superblocks_generic;
#if defined(__x86_64__)
extern const SuperblockOps superblocks_avx2;
extern const SuperblockOps superblocks_avx512;
extern const SuperblockOps superblocks_avx512_bf16;
#endif
