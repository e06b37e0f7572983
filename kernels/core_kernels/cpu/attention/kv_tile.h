// Reads the KV cache in KV tiles of 64 positions.
#pragma once

#include "cpu/attention/cache_write.h"
#include "cpu/buffer.h"
#include "cpu/gemm/tiles.h"
#include "cpu/attention/transpose.h"

namespace {

struct VisibleRange {
    int64_t first, end;  // positions [first, end)
};

// Keys and values of up to 64 consecutive positions, as column tiles of sixteen.
template <typename T>
struct KVTile {
    int64_t position,
        end;  // [position, end): data after `end` is never multiplied unless it is finite
    int first_tile, tiles;  // column tiles [first_tile, tiles) hold visible positions
    int64_t padded_width;   // width of a value row, padded
    const T* keys[kTiles];
    const T* values[kTiles];
    const T* next_keys[kTiles];  // keys to prefetch next, or null
    bool is_zero_copy;           // read directly from the cache
};

// Reads KV tiles. Copies rows that are not in the unit layout, dequantizes eight-bit rows, and
// transposes keys that contain their values. One reader per thread; a tile is valid until the next
// read.
template <typename T>
class TileReader {
public:
    explicit TileReader(const PagedAttention& a)
        : units_(uses_unit_layout(a)),
          key_width_(padded_to_lanes(a.head_size)),
          value_width_(padded_to_lanes(a.value_size ? a.value_size : a.head_size)),
          keys_(units_ ? nullptr : make_buffer<T>(kPanel * key_width_)),
          values_(units_ && !a.value_size ? nullptr : make_buffer<T>(kPanel * value_width_)),
          rows_(a.cache_format ? make_buffer<T>(kLanes * key_width_) : nullptr),
          padded_(kTiled<T> ? make_buffer<T>(kLanes * value_width_) : nullptr) {}

    // Reads the positions [at, at + 64), of which [first, end) are visible.
    KVTile<T> read(const PagedAttention& a, const int32_t* table, int64_t head, int64_t at,
                   int64_t first, int64_t end) {
        KVTile<T> kv;
        kv.position = at;
        kv.end = end < at + kPanel ? end : at + kPanel;
        kv.first_tile = first > at ? static_cast<int>((first - at) / kLanes) : 0;
        kv.tiles = static_cast<int>((kv.end - at + kLanes - 1) / kLanes);
        kv.padded_width = value_width_;
        kv.is_zero_copy = !values_;
        for (const T*& tile : kv.next_keys) tile = nullptr;
        if (units_)
            point_to_cache(a, table, head, kv);
        else
            copy_rows(a, table, head, first, kv);
        if (a.value_size)
            for (int t = kv.first_tile; t < kv.tiles; ++t) {
                T* rows = &values_[t * kLanes * value_width_];
                transpose_tile(rows, kv.keys[t], value_width_);
                kv.values[t] = rows;
            }
        if constexpr (kTiled<T>) pad_values(kv);
        return kv;
    }

    // Sets the keys to prefetch: those of the tile at `at`, of which `visible` are visible.
    void set_next(const PagedAttention& a, const int32_t* table, int64_t head, int64_t at,
                  VisibleRange visible, KVTile<T>& kv) const {
        if (!kv.is_zero_copy) return;
        for (int t = 0; t < kTiles; ++t) {
            const int64_t position = at + t * kLanes;
            if (position + kLanes > visible.first && position < visible.end)
                kv.next_keys[t] = key_at(a, table, head, position);
        }
    }

private:
    static const T* key_at(const PagedAttention& a, const int32_t* table, int64_t head,
                           int64_t position) {
        return keys_of<T>(a, table[position / a.block_size], head) +
               position % a.block_size * a.head_size;
    }

    // Pads the last values to sixteen with zeros: tile registers multiply whole chunks of keys, and
    // later slots belong to other sequences.
    void pad_values(KVTile<T>& kv) {
        constexpr int64_t each = Units<T>::kNumbers;
        const int64_t keys = (kv.end - kv.position) % kLanes;
        if (keys == 0) return;
        T* rows = padded_.get();
        const T* values = kv.values[kv.tiles - 1];
        const int64_t whole = keys / each * each * value_width_;
        std::memcpy(rows, values, whole * sizeof(T));
        std::memset(rows + whole, 0, (kLanes * value_width_ - whole) * sizeof(T));
        if (keys % each)
            for (int64_t n = 0; n < value_width_; ++n)
                rows[whole + n * each] = values[whole + n * each];
        kv.values[kv.tiles - 1] = rows;
    }

    static int64_t padded_to_lanes(int64_t numbers) {
        return (numbers + kLanes - 1) / kLanes * kLanes;
    }

    void point_to_cache(const PagedAttention& a, const int32_t* table, int64_t head,
                        KVTile<T>& kv) const {
        for (int t = 0; t < kTiles; ++t) {
            if (t < kv.first_tile || t >= kv.tiles) continue;
            kv.keys[t] = key_at(a, table, head, kv.position + t * kLanes);
            kv.values[t] = kv.keys[t] + a.block_size * a.head_size;
        }
        for (int t = 0; t < kTiles; ++t)  // invisible column tiles are computed along and dropped
            if (t < kv.first_tile || t >= kv.tiles) kv.keys[t] = kv.keys[kv.first_tile];
    }

    void copy_rows(const PagedAttention& a, const int32_t* table, int64_t head, int64_t first,
                   KVTile<T>& kv) {
        constexpr int64_t each = Units<T>::kNumbers;
        T *keys = keys_.get(), *values = values_.get();
        for (int t = 0; t < kTiles; ++t) {
            kv.keys[t] = keys + t * kLanes * key_width_;
            kv.values[t] = values + t * kLanes * value_width_;
        }
        if (a.cache_format) {
            with_kind(a, [&](auto kind) {
                for (int t = kv.first_tile; t < kv.tiles; ++t)
                    dequantize<decltype(kind)>(a, table, head, {first, kv.end},
                                               kv.position + t * kLanes, t);
            });
            return;
        }
        std::memset(keys, 0, kPanel * key_width_ * sizeof(T));
        std::memset(values, 0, kPanel * value_width_ * sizeof(T));
        for (int64_t position = first > kv.position ? first : kv.position; position < kv.end;
             ++position) {
            const int64_t i = position - kv.position, offset = position % a.block_size;
            const T* block = keys_of<T>(a, table[position / a.block_size], head);
            const T *key = block + offset * a.head_size, *value = key + a.block_size * a.head_size;
            T* tile = keys + i / kLanes * kLanes * key_width_ + i % kLanes * each;
            T* row = values + i / each * each * value_width_ + i % each;
            for (int64_t n = 0; n < a.head_size; ++n)
                tile[n / each * each * kLanes + n % each] = key[n];
            if (a.value_size) continue;
            for (int64_t n = 0; n < a.head_size; ++n) row[n * each] = value[n];
        }
    }

    // Decodes the sixteen positions from `at` to column tile t; invisible ones are zero.
    template <typename Kind>
    void dequantize(const PagedAttention& a, const int32_t* table, int64_t head,
                    VisibleRange visible, int64_t at, int t) {
        const T* rows[kLanes];
        for (int k = 0; k < kLanes; ++k) rows[k] = &rows_[k * key_width_];
        decode_rows<Kind>(a, table, head, visible, at, 0);
        make_tile(keys_.get() + t * kLanes * key_width_, rows, key_width_);
        if (a.value_size) return;
        decode_rows<Kind>(a, table, head, visible, at, 1);
        T* values = values_.get() + t * kLanes * value_width_;
        if constexpr (Units<T>::kNumbers == 2)
            for (int k = 0; k < kLanes; k += 2)
                make_pairs(values + k * value_width_, rows[k], rows[k + 1], value_width_);
        else
            std::memcpy(values, rows_.get(), kLanes * value_width_ * sizeof(T));
    }

    template <typename Kind>
    void decode_rows(const PagedAttention& a, const int32_t* table, int64_t head,
                     VisibleRange visible, int64_t at, int part) {
        for (int k = 0; k < kLanes; ++k) {
            T* row = &rows_[k * key_width_];
            const int64_t position = at + k;
            if (position < visible.first || position >= visible.end) {
                std::memset(row, 0, key_width_ * sizeof(T));
                continue;
            }
            dequantize_row<Kind>(row,
                                 cache_row(a, table[position / a.block_size],
                                           position % a.block_size, head, part),
                                 a.head_size, head_scale(a, head, part));
        }
    }

    const bool units_;
    const int64_t key_width_, value_width_;
    const Buffer<T> keys_, values_, rows_, padded_;
};

}  // namespace
