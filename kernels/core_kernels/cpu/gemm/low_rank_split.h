// Splits the LoRA products of one call into work items. Include "cpu/vectors.h" first.
#pragma once

#include <algorithm>
#include <vector>

#include "cpu/buffer.h"
#include "cpu/gemm/low_rank.h"

namespace {

constexpr int64_t kPair = 2 * kLanes;       // elements that are loaded together
constexpr int64_t kRanks = 4;               // of a block of the A factor
constexpr int64_t kColumns = 2 * kPair;     // of a panel of the B factor
constexpr int64_t kRowsOfPiece = 64;        // of x, which stay in a core's cache during all ranks
constexpr int64_t kPieceNumbers = 1 << 13;  // of a factor

// A row of one adapter. (Vectors use types of this file: instantiations for plain types are merged
// across instruction sets.)
struct Row {
    int32_t number;
};

// The rows of one adapter, and its shrink results.
struct Group {
    const LowRank* adapter;
    const Row* rows;
    int64_t count;
    float* narrow;  // [count, rank]
};

// A work item: some ranks (shrink), or some columns of a part (expand), for some rows of a group.
struct Piece {
    const Group* group;
    const LowRankPart* part;  // null: shrink
    int64_t row, rows;
    int64_t first, last;  // ranks, or columns
    int64_t rank;         // first rank of the part
};

// Reused from call to call by each thread, so that no call allocates.
class LowRankSplit {
public:
    std::vector<Group> groups;
    std::vector<Piece> shrinks, expands;
    int64_t numbers;  // multiply-adds

    void build(const Adapted& a) {
        gather(a);
        shrinks.clear(), expands.clear();
        for (const Group& group : groups)
            for (int64_t row = 0; row < group.count && group.adapter->a; row += kRowsOfPiece)
                cut(a, group, row, std::min(kRowsOfPiece, group.count - row));
    }

private:
    struct AdapterRows {
        int64_t rows;
    };
    std::vector<AdapterRows> offsets_;  // by adapter
    std::vector<Row> rows_;
    Buffer<float> narrow_;
    int64_t capacity_ = 0;

    bool has_rows(int32_t adapter) const { return adapter >= 0 && offsets_[adapter].rows >= 0; }

    // Sorts the rows by adapter.
    void gather(const Adapted& a) {
        offsets_.assign(a.num_adapters, {0});
        for (int64_t i = 0; i < a.rows; ++i)
            if (a.adapters[i] >= 0) ++offsets_[a.adapters[i]].rows;
        groups.clear();
        numbers = 0;
        int64_t rows = 0, sums = 0;
        for (int64_t n = 0; n < a.num_adapters; ++n) {
            const LowRank& adapter = a.table[n];
            const int64_t count = offsets_[n].rows;
            offsets_[n].rows = count && (adapter.a || adapter.bias) ? rows : -1;
            if (offsets_[n].rows < 0) continue;
            groups.push_back({&adapter, nullptr, count, nullptr});
            rows += count;
            sums += count * adapter.rank;
            numbers += count * adapter.rank * (a.in + a.columns);
        }
        if (capacity_ < sums) narrow_ = make_buffer<float>(capacity_ = 2 * sums);
        rows_.resize(rows);
        Row* own = rows_.data();
        float* narrow = narrow_.get();
        for (Group& group : groups) {
            group.rows = own, group.narrow = narrow;
            own += group.count, narrow += group.count * group.adapter->rank;
        }
        for (int64_t i = 0; i < a.rows; ++i)
            if (has_rows(a.adapters[i]))
                rows_[offsets_[a.adapters[i]].rows++].number = static_cast<int32_t>(i);
    }

    void cut(const Adapted& a, const Group& group, int64_t row, int64_t count) {
        const LowRank& adapter = *group.adapter;
        const int64_t ranks = std::max<int64_t>(1, kPieceNumbers / (a.in * kRanks)) * kRanks;
        for (int64_t first = 0; first < adapter.rank; first += ranks)
            shrinks.push_back(
                {&group, nullptr, row, count, first, std::min(adapter.rank, first + ranks), 0});
        int64_t rank = 0;
        for (int64_t i = 0; i < adapter.num_parts; ++i) {
            const LowRankPart& part = adapter.parts[i];
            const int64_t columns =
                std::max<int64_t>(1, kPieceNumbers / (part.rank * kColumns)) * kColumns;
            for (int64_t first = 0; first < part.width; first += columns)
                expands.push_back({&group, &part, row, count, first,
                                   std::min(part.width, first + columns), rank});
            rank += part.rank;
        }
    }
};

}  // namespace
