// Paged attention as a table of functions, one table per instruction set, all from attention.cpp.
#pragma once

#include <cstdint>

#include "cpu/elementwise/row_ops.h"
#include "cpu/variant.h"

// Storage formats of a KV cache with another dtype than keys and values.
constexpr int64_t kCacheInt8 = 1, kCacheE4M3 = 2, kCacheE5M2 = 3;

// The attention of one layer in one step; part of the C ABI. Strides in elements; the last
// dimension of query, key and value is contiguous.
//
// A KV block holds, for each KV head, `block_size` keys, then as many values (no values where they
// are a prefix of the keys). If sixteen divides block_size and head_size, both use the unit layout
// of tiles.h: keys as tiles of sixteen, values as rows of units. Otherwise both are plain rows;
// eight-bit rows are described in cache_codes.h.
struct PagedAttention {
    void* out;  // [tokens, heads, value size], contiguous
    const void* query;
    const void* key;
    const void* value;
    void* cache;
    const int64_t* slots;    // [num_slots]: slot mapping, block * block_size + offset
    const int64_t* starts;   // [sequences + 1]: first token of each sequence
    const int64_t* lengths;  // [sequences]: number of keys, this step's included
    const int32_t* tables;   // [sequences, table_stride]: block tables
    const float* alibi;      // [heads], or null
    const float* sinks;      // [heads], or null
    int64_t num_slots, sequences, table_stride;
    int64_t heads, kv_heads, head_size, block_size;
    int64_t query_token, query_head, key_token, key_head, value_token, value_head;
    int64_t window, chunk;  // 0: unlimited
    float scale, softcap;   // softcap 0: off
    int32_t causal, dtype;
    const int64_t* order;  // [sequences]: sequence ids sorted so that shared prefixes are adjacent
    const int64_t*
        shared;  // [sequences]: positions in blocks shared with the next sequence in `order`
    int64_t value_size;  // size of values that are a prefix of the keys; 0: values are cached
                         // separately
    const float*
        key_scale;  // [kv_heads], for eight-bit caches; null: each row stores its own scale
    const float* value_scale;
    int64_t cache_format;  // 0: dtype of keys and values, else kCache...
    const int64_t*
        slot_tokens;  // [num_slots]: token written to each slot; null: token i goes to slot i
};

// Returns the token that is written to a slot.
inline int64_t token_of(const PagedAttention& a, int64_t slot) {
    return a.slot_tokens ? a.slot_tokens[slot] : slot;
}

// Returns the key or value of one head that is written to a slot.
template <typename T>
const T* key_of(const PagedAttention& a, int64_t slot, int64_t head) {
    return static_cast<const T*>(a.key) + token_of(a, slot) * a.key_token + head * a.key_head;
}

template <typename T>
const T* value_of(const PagedAttention& a, int64_t slot, int64_t head) {
    return static_cast<const T*>(a.value) + token_of(a, slot) * a.value_token + head * a.value_head;
}

// Returns the layer's arguments with the sequences of another step.
inline PagedAttention with_step(PagedAttention layer, const PagedAttention& step) {
    layer.slots = step.slots;
    layer.slot_tokens = step.slot_tokens;
    layer.starts = step.starts;
    layer.lengths = step.lengths;
    layer.tables = step.tables;
    layer.num_slots = step.num_slots;
    layer.sequences = step.sequences;
    layer.table_stride = step.table_stride;
    layer.block_size = step.block_size;
    layer.order = step.order;
    layer.shared = step.shared;
    return layer;
}

struct AttentionOps {
    // Writes keys and values to the cache, then computes `out`.
    void (*attend)(const PagedAttention& a);
};

VARIANT_TABLES(AttentionOps, attention_);
