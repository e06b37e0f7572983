// Keys and values of the cache, 64 of them at a time as tiles.
#pragma once

#include "blocks.h"
#include "buffer.h"
#include "tiles.h"
#include "turn.h"

namespace {

struct Seen {
    int64_t first, end;  // positions [first, end)
};

// Up to 64 keys and values of neighbouring positions.
template <typename T>
struct Piece {
    int64_t position, end;  // [position, end): beyond `end` nothing is read that could be no number
    int first_tile, tiles;  // those that hold anything seen
    int64_t across;         // numbers of a value, as they lie
    const T* keys[kTiles];
    const T* values[kTiles];
    const T* next[kTiles];  // keys that are wanted after these, or null
    bool in_place;          // it is read where the cache has it
};

// Finds pieces; copies what does not lie in units, widens what has eight bits, and turns keys that begin with their values. One per thread: a piece
// is there until the next is asked for.
template <typename T>
class Reader {
public:
    explicit Reader(const PagedAttention& a)
        : units_(lies_in_units(a)),
          key_across_(in_tiles(a.head_size)),
          across_(in_tiles(a.value_size ? a.value_size : a.head_size)),
          keys_(units_ ? nullptr : make_buffer<T>(kPanel * key_across_)),
          values_(units_ && !a.value_size ? nullptr : make_buffer<T>(kPanel * across_)),
          row_(a.kept ? make_buffer<T>(key_across_) : nullptr),
          last_(kTiled<T> ? make_buffer<T>(kLanes * across_) : nullptr) {}

    // Of the positions [at, at + 64) those in [first, end) are seen.
    Piece<T> piece(const PagedAttention& a, const int32_t* table, int64_t head, int64_t at, int64_t first, int64_t end) {
        Piece<T> piece;
        piece.position = at;
        piece.end = end < at + kPanel ? end : at + kPanel;
        piece.first_tile = first > at ? static_cast<int>((first - at) / kLanes) : 0;
        piece.tiles = static_cast<int>((piece.end - at + kLanes - 1) / kLanes);
        piece.across = across_;
        piece.in_place = !values_;
        for (const T*& tile : piece.next) tile = nullptr;
        if (units_)
            find(a, table, head, piece);
        else
            copy(a, table, head, first, piece);
        if (a.value_size)
            for (int t = piece.first_tile; t < piece.tiles; ++t) {
                T* rows = &values_[t * kLanes * across_];
                turn_tile(rows, piece.keys[t], across_);
                piece.values[t] = rows;
            }
        if constexpr (kTiled<T>) fill_up(piece);
        return piece;
    }

    // Says which piece is wanted after this one: that at `at`, of which positions in `seen` are seen.
    void announce(const PagedAttention& a, const int32_t* table, int64_t head, int64_t at, Seen seen,
                  Piece<T>& piece) const {
        if (!piece.in_place) return;
        for (int t = 0; t < kTiles; ++t) {
            const int64_t place = at + t * kLanes;
            if (place + kLanes > seen.first && place < seen.end) piece.next[t] = key_at(a, table, head, place);
        }
    }

private:
    static const T* key_at(const PagedAttention& a, const int32_t* table, int64_t head, int64_t place) {
        return keys_of<T>(a, table[place / a.block_size], head) + place % a.block_size * a.head_size;
    }

    // Makes the last values sixteen, with zeros behind them: registers multiply whole chunks of keys, and what lies beside
    // the last key is no key of this sequence.
    void fill_up(Piece<T>& piece) {
        constexpr int64_t each = Units<T>::kNumbers;
        const int64_t keys = (piece.end - piece.position) % kLanes;
        if (keys == 0) return;
        T* rows = last_.get();
        const T* values = piece.values[piece.tiles - 1];
        const int64_t whole = keys / each * each * across_;
        std::memcpy(rows, values, whole * sizeof(T));
        std::memset(rows + whole, 0, (kLanes * across_ - whole) * sizeof(T));
        if (keys % each)
            for (int64_t n = 0; n < across_; ++n) rows[whole + n * each] = values[whole + n * each];
        piece.values[piece.tiles - 1] = rows;
    }

    static int64_t in_tiles(int64_t numbers) { return (numbers + kLanes - 1) / kLanes * kLanes; }

    void find(const PagedAttention& a, const int32_t* table, int64_t head, Piece<T>& piece) const {
        for (int t = 0; t < kTiles; ++t) {
            if (t < piece.first_tile || t >= piece.tiles) continue;
            piece.keys[t] = key_at(a, table, head, piece.position + t * kLanes);
            piece.values[t] = piece.keys[t] + a.block_size * a.head_size;
        }
        for (int t = 0; t < kTiles; ++t)  // what nobody sees is computed beside the others, and dropped
            if (t < piece.first_tile || t >= piece.tiles) piece.keys[t] = piece.keys[piece.first_tile];
    }

    void copy(const PagedAttention& a, const int32_t* table, int64_t head, int64_t first, Piece<T>& piece) {
        constexpr int64_t each = Units<T>::kNumbers;
        T *keys = keys_.get(), *values = values_.get();
        std::memset(keys, 0, kPanel * key_across_ * sizeof(T));
        std::memset(values, 0, kPanel * across_ * sizeof(T));
        for (int t = 0; t < kTiles; ++t) {
            piece.keys[t] = keys + t * kLanes * key_across_;
            piece.values[t] = values + t * kLanes * across_;
        }
        if (a.kept) {
            with_kind(a, [&](auto kind) { widen<decltype(kind)>(a, table, head, first, piece.position, piece.end); });
            return;
        }
        for (int64_t place = first > piece.position ? first : piece.position; place < piece.end; ++place) {
            const int64_t i = place - piece.position, offset = place % a.block_size;
            const T* block = keys_of<T>(a, table[place / a.block_size], head);
            const T *key = block + offset * a.head_size, *value = key + a.block_size * a.head_size;
            T* tile = keys + i / kLanes * kLanes * key_across_ + i % kLanes * each;
            T* row = values + i / each * each * across_ + i % each;
            for (int64_t n = 0; n < a.head_size; ++n) tile[n / each * each * kLanes + n % each] = key[n];
            if (a.value_size) continue;
            for (int64_t n = 0; n < a.head_size; ++n) row[n * each] = value[n];
        }
    }

    template <typename Kind>
    void widen(const PagedAttention& a, const int32_t* table, int64_t head, int64_t first, int64_t at, int64_t end) {
        constexpr int64_t each = Units<T>::kNumbers;
        for (int64_t place = first > at ? first : at; place < end; ++place) {
            const int64_t i = place - at, block = table[place / a.block_size], offset = place % a.block_size;
            T *row = row_.get(), *tile = keys_.get() + i / kLanes * kLanes * key_across_ + i % kLanes * each;
            widen_row<Kind>(row, narrow_row(a, block, offset, head, 0), a.head_size, known_scale(a, head, 0));
            for (int64_t n = 0; n < a.head_size; n += each) std::memcpy(tile + n * kLanes, row + n, each * sizeof(T));
            if (a.value_size) continue;
            T* values = values_.get() + i / each * each * across_ + i % each;
            widen_row<Kind>(row, narrow_row(a, block, offset, head, 1), a.head_size, known_scale(a, head, 1));
            for (int64_t n = 0; n < a.head_size; ++n) values[n * each] = row[n];
        }
    }

    const bool units_;
    const int64_t key_across_, across_;
    const Buffer<T> keys_, values_, row_, last_;
};

}  // namespace
