// Products with integer codes where registers hold few sums: a panel group by group, a group tile
// by tile, a tile by all blocks of rows. Totals stay in the cache from group to group.
//
// With few rows, codes are extracted where they are multiplied; one row of four-bit codes with AVX2
// has a kernel of its own (byte_row.h). With more, the codes of a tile's group are opened to 16-bit
// pairs in the first-level cache, where all blocks of rows read them.
#pragma once

#include "cpu/gemm/opened_tile.h"
#include "cpu/quant/byte_row.h"
#include "cpu/quant/integer_panels.h"

namespace {

template <int kCode>
class ChunkedCodes {
public:
    explicit ChunkedCodes(int64_t rows)
        : totals_(make_buffer<float>(std::min(rows, kRowsAtOnce) * kPanel)),
          opened_(make_buffer<uint32_t>(rows > kInlineRows ? kLargestGroup / 2 * kLanes : 0)) {}

    // Rows [first, last) of x times a panel; its results start at `column`.
    void multiply(const ResultWriter& results, int64_t column, const QuantizedRows& rows,
                  int64_t first, int64_t last, const uint8_t* panel, int64_t columns,
                  const Layout& at) const {
        for (int64_t row = first; row < last; row += kRowsAtOnce) {
            const int64_t count = std::min(kRowsAtOnce, last - row);
            std::memset(totals_.get(), 0, count * kPanel * sizeof(float));
            const bool done = count == 1 && multiply_byte_row<kCode>(totals_.get(), rows, row,
                                                                     panel, columns, at);
            for (int64_t g = 0; g < at.groups() && !done; ++g)
                add_group({rows, row, count, g, panel + at.group_at(g, columns), columns, at});
            auto* totals = reinterpret_cast<Floats(*)[kTiles]>(totals_.get());
            if (at.has_factors()) multiply_by_factors(totals, count, panel, 0, columns / kLanes);
            results.write(row, column, totals, count, at.rows - column);
        }
    }

private:
    using Code = Codes<kCode>;
    static constexpr int kInlineRows = kCode == kInt8 ? 4 : 3;  // extracting four bits costs more
    static constexpr int64_t kFetchAhead = 8192 + 1024;  // more than a group, so all passes help

    // A group of a panel, and the rows of x.
    struct Group {
        const QuantizedRows& rows;
        int64_t row, count, index;
        const uint8_t* start;
        int64_t columns;
        const Layout& at;

        const uint8_t* codes(int64_t tile) const {
            return start + at.codes_at(columns) + tile * sizeof(Words);
        }
        int64_t step() const { return columns * sizeof(uint32_t); }
        int64_t inputs() const { return at.inputs(index); }
        const int16_t* x(int64_t r) const {
            return &rows.pairs[rows.at(row + r, index * at.group)];
        }
        int32_t x_sum(int64_t r) const { return rows.sums[index * rows.count + row + r]; }
        float x_scale(int64_t r) const {
            return rows.scales[span_of(index, rows) * rows.count + row + r];
        }
    };

    void add_group(const Group& group) const {
        for (int64_t line = 0; line < group.at.codes_at(group.columns); line += kCacheLine)
            __builtin_prefetch(group.start + kFetchAhead + line, 0, 2);
        if (group.count > kInlineRows) return add_opened(group);
        with_rows<kInlineRows>(group.count, [&](auto count) {
            constexpr int R = decltype(count)::value, kMany = kBlockTiles<R>;
            const int64_t tiles = group.columns / kLanes;
            int64_t tile = 0;
            for (; tile + kMany <= tiles; tile += kMany) add_inline<R, kMany>(group, tile);
            for (; tile < tiles; ++tile) add_inline<R, 1>(group, tile);
        });
    }

    template <int R, int C>
    void add_inline(const Group& group, int64_t tile) const {
        Ints sums[R][C];
        if (group.at.zeros == kIntZeros) {
            start_from_zeros(sums, group, tile, 0);
        } else {
            for (int r = 0; r < R; ++r) {
                const Ints start = Ints{} + -Code::kZero * group.x_sum(r);
                for (int c = 0; c < C; ++c) sums[r][c] = start;
            }
        }
        const uint8_t* from = group.codes(tile);
        const int16_t* x = group.x(0);
        const int64_t step = group.step(), run = group.rows.run;
        for (int64_t left = group.inputs(); left > 0;
             left -= Code::kInputs, from += step, x += Code::kInputs) {
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) {
                const uint8_t* words_at = from + c * sizeof(Words);
                __builtin_prefetch(words_at + kFetchAhead, 0, 2);
                const Words words = load_words(words_at);
#pragma GCC unroll 4
                for (int i = 0; i < Code::kInputs / 2; ++i) {
                    const Words own = Code::pair(words, i);
#pragma GCC unroll 4
                    for (int r = 0; r < R; ++r)
                        sums[r][c] = add_pairs(sums[r][c], spread_word(x + r * run + 2 * i), own);
                }
            }
        }
        finish<R, C>(sums, group, tile, 0);
    }

    void add_opened(const Group& group) const {
        const bool has_zeros = group.at.zeros == kIntZeros;
        for (int64_t tile = 0; tile < group.columns / kLanes; ++tile) {
            open(group, tile, has_zeros ? 0 : Code::kZero);
            in_even_blocks<kBlockRows>(group.count, [&](auto count, int64_t row, int64_t, int64_t) {
                constexpr int R = decltype(count)::value;
                Ints sums[R][1] = {};
                if (has_zeros) start_from_zeros(sums, group, tile, row);
                const int16_t* x = group.x(row);
                const uint32_t* codes = opened_.get();
                const int64_t run = group.rows.run, pairs = group.inputs() / 2;
                for (int64_t k = 0; k < pairs; ++k) {
                    const Words own = load_words(codes + k * kLanes);
#pragma GCC unroll 8
                    for (int r = 0; r < R; ++r)
                        sums[r][0] = add_pairs(sums[r][0], spread_word(x + r * run + 2 * k), own);
                }
                finish<R, 1>(sums, group, tile, row);
            });
        }
    }

    // Subtracts the zero points of a group, times the sums of x.
    template <int R, int C>
    static void start_from_zeros(Ints (&sums)[R][C], const Group& group, int64_t tile,
                                 int64_t row) {
        for (int c = 0; c < C; ++c) {
            const Ints zeros = load_zeros<kCode>(group.start, tile + c, group.columns, group.at);
            for (int r = 0; r < R; ++r) sums[r][c] = zeros * -group.x_sum(row + r);
        }
    }

    // Opens the codes of a tile's group to 16-bit pairs, minus a zero.
    void open(const Group& group, int64_t tile, uint32_t zero) const {
        const uint8_t* from = group.codes(tile);
        uint32_t* to = opened_.get();
        const int64_t step = group.step();
        for (int64_t left = group.inputs(); left > 0; left -= Code::kInputs, from += step) {
            __builtin_prefetch(from + kFetchAhead, 0, 2);
            const Words words = load_words(from);
#pragma GCC unroll 4
            for (int i = 0; i < Code::kInputs / 2; ++i, to += kLanes)
                store_vector(to, subtract_halves(Code::pair(words, i), zero));
        }
    }

    // Scales the sums of a group, and adds them to the totals.
    template <int R, int C>
    void finish(const Ints (&sums)[R][C], const Group& group, int64_t tile, int64_t row) const {
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
            const GroupScale<kCode> scale(group.start, tile + c, group.columns, group.at);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                float* total = totals_.get() + (row + r) * kPanel + (tile + c) * kLanes;
                store(total, scale.added(load(total), sums[r][c], group.x_sum(row + r),
                                         group.x_scale(row + r)));
            }
        }
    }

    const Buffer<float> totals_;
    const Buffer<uint32_t> opened_;
};

}  // namespace
