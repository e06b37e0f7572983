// How one call's products of low rank are cut. Knows rows, ranks and columns, no numbers. Include "../vectors.h" before.
#pragma once

#include <algorithm>
#include <vector>

#include "buffer.h"
#include "low_rank.h"

namespace {

constexpr int64_t kPair = 2 * kLanes;        // numbers that are loaded together
constexpr int64_t kRanks = 4;                // of a block of the first factor
constexpr int64_t kColumns = 2 * kPair;      // of a panel of the second one
constexpr int64_t kRowsOfPiece = 64;         // of x, which stay in a core's cache while all ranks are multiplied by them
constexpr int64_t kPieceNumbers = 1 << 13;   // of a factor

// Of one adapter. (Vectors are of types of this file: those of plain numbers are merged over instruction sets.)
struct Row {
    int32_t number;
};

// Rows of one adapter, and where the products of its first factor are.
struct Group {
    const LowRank* adapter;
    const Row* rows;
    int64_t count;
    float* narrow;  // [count, rank]
};

// A piece of one of both products: some ranks, or some columns of a part, for some rows of a group.
struct Piece {
    const Group* group;
    const LowRankPart* part;  // null: ranks
    int64_t row, rows;
    int64_t first, last;  // ranks, or columns
    int64_t rank;         // the part's first one
};

// What a thread keeps from call to call, so that none allocates.
class Cut {
public:
    std::vector<Group> groups;
    std::vector<Piece> shrinks, expands;
    int64_t numbers;  // that are multiplied

    void take(const Adapted& a) {
        gather(a);
        shrinks.clear(), expands.clear();
        for (const Group& group : groups)
            for (int64_t row = 0; row < group.count && group.adapter->a; row += kRowsOfPiece)
                cut(a, group, row, std::min(kRowsOfPiece, group.count - row));
    }

private:
    struct Place {
        int64_t rows;
    };
    std::vector<Place> places_;  // by adapter
    std::vector<Row> rows_;
    Buffer<float> narrow_;
    int64_t room_ = 0;

    bool is_taken(int32_t adapter) const { return adapter >= 0 && places_[adapter].rows >= 0; }

    // Puts rows into the order of their adapters.
    void gather(const Adapted& a) {
        places_.assign(a.num_adapters, {0});
        for (int64_t i = 0; i < a.rows; ++i)
            if (a.adapters[i] >= 0) ++places_[a.adapters[i]].rows;
        groups.clear();
        numbers = 0;
        int64_t rows = 0, sums = 0;
        for (int64_t n = 0; n < a.num_adapters; ++n) {
            const LowRank& adapter = a.table[n];
            const int64_t count = places_[n].rows;
            places_[n].rows = count && (adapter.a || adapter.bias) ? rows : -1;
            if (places_[n].rows < 0) continue;
            groups.push_back({&adapter, nullptr, count, nullptr});
            rows += count;
            sums += count * adapter.rank;
            numbers += count * adapter.rank * (a.in + a.columns);
        }
        if (room_ < sums) narrow_ = make_buffer<float>(room_ = 2 * sums);
        rows_.resize(rows);
        Row* own = rows_.data();
        float* narrow = narrow_.get();
        for (Group& group : groups) {
            group.rows = own, group.narrow = narrow;
            own += group.count, narrow += group.count * group.adapter->rank;
        }
        for (int64_t i = 0; i < a.rows; ++i)
            if (is_taken(a.adapters[i])) rows_[places_[a.adapters[i]].rows++].number = static_cast<int32_t>(i);
    }

    void cut(const Adapted& a, const Group& group, int64_t row, int64_t count) {
        const LowRank& adapter = *group.adapter;
        const int64_t ranks = std::max<int64_t>(1, kPieceNumbers / (a.in * kRanks)) * kRanks;
        for (int64_t first = 0; first < adapter.rank; first += ranks)
            shrinks.push_back({&group, nullptr, row, count, first, std::min(adapter.rank, first + ranks), 0});
        int64_t rank = 0;
        for (int64_t i = 0; i < adapter.num_parts; ++i) {
            const LowRankPart& part = adapter.parts[i];
            const int64_t columns = std::max<int64_t>(1, kPieceNumbers / (part.rank * kColumns)) * kColumns;
            for (int64_t first = 0; first < part.width; first += columns)
                expands.push_back({&group, &part, row, count, first, std::min(part.width, first + columns), rank});
            rank += part.rank;
        }
    }
};

}  // namespace
