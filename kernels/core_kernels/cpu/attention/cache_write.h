// Layout of keys and values in the KV cache, and the writes to it.
#pragma once

#include "cpu/attention/attention.h"
#include "cpu/attention/cache_codes.h"
#include "cpu/gemm/tiles.h"
#include "cpu/attention/transpose.h"

namespace {

// Start of one head's keys in a block; its values follow.
template <typename T>
inline T* keys_of(const PagedAttention& a, int64_t block, int64_t head) {
    return static_cast<T*>(a.cache) +
           (block * a.kv_heads + head) * (a.value_size ? 1 : 2) * a.block_size * a.head_size;
}

inline bool uses_unit_layout(const PagedAttention& a) {
    return !a.cache_format && a.block_size % kLanes == 0 && a.head_size % kLanes == 0;
}

// Returns the number of consecutive slots from index i, up to `limit`.
inline int64_t run_length(const PagedAttention& a, int64_t i, int64_t limit) {
    int64_t count = 1;
    while (count < limit && i + count < a.num_slots && a.slots[i + count] == a.slots[i] + count)
        ++count;
    return count;
}

// Writes one head's keys and values in the unit layout; whole tiles and whole units in one go.
template <typename T>
struct UnitWriter {
    static constexpr int64_t kEach = Units<T>::kNumbers;
    const PagedAttention& a;
    const int64_t head;

    void write() const {
        for (int64_t i = 0; i < a.num_slots;) {
            const bool begins = a.slots[i] % kLanes == 0;
            if (begins && run_length(a, i, kLanes) == kLanes) {
                write_tile(i);
                i += kLanes;
            } else {
                write_key(i++);
            }
        }
        if (a.value_size) return;
        for (int64_t i = 0; i < a.num_slots;) {
            const bool pair = kEach == 2 && a.slots[i] % 2 == 0 && run_length(a, i, 2) == 2;
            write_values(i, pair);
            i += pair ? 2 : 1;
        }
    }

private:
    const T* key(int64_t i) const { return key_of<T>(a, i, head); }
    const T* value(int64_t i) const { return value_of<T>(a, i, head); }
    int64_t offset(int64_t i) const { return a.slots[i] % a.block_size; }
    T* keys(int64_t i) const { return keys_of<T>(a, a.slots[i] / a.block_size, head); }

    void write_key(int64_t i) const {
        T* tile = keys(i) + offset(i) / kLanes * kLanes * a.head_size + offset(i) % kLanes * kEach;
        for (int64_t n = 0; n < a.head_size; n += kEach)
            std::memcpy(tile + n * kLanes, key(i) + n, kEach * sizeof(T));
    }

    // Writes sixteen keys that form a tile.
    void write_tile(int64_t i) const {
        const T* rows[kLanes];
        for (int k = 0; k < kLanes; ++k) rows[k] = key(i + k);
        make_tile(keys(i) + offset(i) * a.head_size, rows, a.head_size);
    }

    void write_values(int64_t i, bool pair) const {
        T* row =
            keys(i) + (a.block_size + offset(i) / kEach * kEach) * a.head_size + offset(i) % kEach;
        const T* one = value(i);
        if constexpr (kEach == 2) {
            if (pair) return make_pairs(row, one, value(i + 1), a.head_size);
            for (int64_t n = 0; n < a.head_size; ++n) row[n * kEach] = one[n];
        } else {
            std::memcpy(row, one, a.head_size * sizeof(T));
        }
    }
};

template <typename T>
void write_head(const PagedAttention& a, int64_t head) {
    if (a.cache_format) return write_quantized<T>(a, head);
    if (uses_unit_layout(a)) return UnitWriter<T>{a, head}.write();
    for (int64_t i = 0; i < a.num_slots; ++i) {
        T* keys = keys_of<T>(a, a.slots[i] / a.block_size, head) +
                  a.slots[i] % a.block_size * a.head_size;
        std::memcpy(keys, key_of<T>(a, i, head), a.head_size * sizeof(T));
        if (!a.value_size)
            std::memcpy(keys + a.block_size * a.head_size, value_of<T>(a, i, head),
                        a.head_size * sizeof(T));
    }
}

}  // namespace
