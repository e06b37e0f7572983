// Attention over keys and values in blocks, as a table of functions: one table per instruction set, all from
// attention.cpp.
#pragma once

#include <cstdint>

#include "../row_ops.h"

// What the numbers of a cache are, where they are not those of keys and values.
constexpr int64_t kKeptInt8 = 1, kKeptE4M3 = 2, kKeptE5M2 = 3;

// One layer in one step; the C ABI's. Strides in elements; of query, key and value the last dimension is contiguous.
//
// A block of the cache holds, for each head of keys, `block_size` keys, then as many values, unless keys begin with their
// values. Where sixteen divides block_size and head_size both lie in units (tiles.h): keys as tiles of sixteen keys, values
// as rows of units, one for as many neighbouring keys as a unit has numbers. Else both lie as plain rows; those of eight bits as narrow.h says.
struct PagedAttention {
    void* out;  // [tokens, heads, size of a value], contiguous
    const void* query;
    const void* key;
    const void* value;
    void* cache;
    const int64_t* slots;   // [num_slots]: where keys and values go, block * block_size + offset
    const int64_t* starts;  // [sequences + 1]: first token of each
    const int64_t* lengths;  // [sequences]: keys of each once this step's are written
    const int32_t* tables;   // [sequences, table_stride]: blocks of each
    const float* alibi;  // [heads], or null
    const float* sinks;  // [heads], or null
    int64_t num_slots, sequences, table_stride;
    int64_t heads, kv_heads, head_size, block_size;
    int64_t query_token, query_head, key_token, key_head, value_token, value_head;
    int64_t window, chunk;  // 0: none
    float scale, softcap;   // softcap 0: none
    int32_t causal, dtype;
    const int64_t* order;   // [sequences]: their numbers, those that begin with the same blocks side by side
    const int64_t* shared;  // [sequences]: positions in the same blocks as those of the next in that order
    int64_t value_size;     // values are the keys' first so many numbers, and only keys are cached; 0: of their own
    const float* key_scale;    // [kv_heads], of a cache of eight bits; null: each row has its own behind it
    const float* value_scale;
    int64_t kept;  // 0: keys and values as they are
    const int64_t* slot_tokens;  // [num_slots]: whose key and value each slot gets; null: those of their own number
};

// The token of a slot, of those that are written.
inline int64_t token_of(const PagedAttention& a, int64_t slot) { return a.slot_tokens ? a.slot_tokens[slot] : slot; }

// What a slot gets, of one head.
template <typename T>
const T* key_of(const PagedAttention& a, int64_t slot, int64_t head) {
    return static_cast<const T*>(a.key) + token_of(a, slot) * a.key_token + head * a.key_head;
}

template <typename T>
const T* value_of(const PagedAttention& a, int64_t slot, int64_t head) {
    return static_cast<const T*>(a.value) + token_of(a, slot) * a.value_token + head * a.value_head;
}

// A layer's facts with the sequences of another step.
inline PagedAttention in_step(PagedAttention layer, const PagedAttention& step) {
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
    // Writes keys and values to the cache, then computes out.
    void (*attend)(const PagedAttention& a);
};

extern const AttentionOps attention_generic;
#if defined(__x86_64__)
extern const AttentionOps attention_avx2;
extern const AttentionOps attention_avx512;
extern const AttentionOps attention_avx512_bf16;
extern const AttentionOps attention_amx;
extern const AttentionOps attention_amx_emulated;
#endif
