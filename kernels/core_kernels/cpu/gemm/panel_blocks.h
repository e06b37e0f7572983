// Blocks of rows times packed tiles, and panels of them in chunks for narrow registers.
#pragma once

#include "cpu/buffer.h"
#include "cpu/gemm/linear.h"
#include "cpu/gemm/opened_tile.h"

namespace {

constexpr int64_t kFetchAhead = 4096;  // prefetch distance in bytes

// Adds the bias and writes the results; `columns` remain from the first one.
template <typename T, int C>
inline __attribute__((always_inline)) void put(T* out, int64_t out_stride, const Floats (*sums)[C],
                                               int64_t rows, const T* bias, int64_t columns) {
    for (int c = 0; c < C && c * kLanes < columns; ++c) {
        const int64_t left = columns - c * kLanes;
        const bool whole = left >= kLanes;
        Floats added = {};
        if (bias) added = whole ? load(bias + c * kLanes) : load(bias + c * kLanes, left);
        for (int64_t r = 0; r < rows; ++r) {
            T* to = out + r * out_stride + c * kLanes;
            const Floats value = bias ? sums[r][c] + added : sums[r][c];
            whole ? store(to, value) : store(to, value, left);
        }
    }
}

// sums += R rows of x times C neighbouring tiles.
template <typename T, int R, int C>
inline __attribute__((always_inline)) void add_block(Floats (&sums)[R][C], const Input<T>* x,
                                                     int64_t x_stride, const T* tile, int64_t step,
                                                     int64_t units, Prefetch ahead) {
    const T* tiles[C];
    for (int c = 0; c < C; ++c) tiles[c] = tile + c * kLanes * Units<T>::kNumbers;
    if constexpr (kWidensInput<T>)
        multiply_wide<T, R, C>(sums, x, x_stride, tiles, step, units, ahead);
    else
        multiply<T, R, C>(sums, x, x_stride, tiles, step, units, ahead);
}

template <typename T, int R, int C>
void block(T* out, int64_t out_stride, const Input<T>* x, int64_t x_stride, const T* tile,
           int64_t step, int64_t units, const T* bias, int64_t columns, Prefetch ahead) {
    Floats sums[R][C] = {};
    add_block<T, R, C>(sums, x, x_stride, tile, step, units, ahead);
    put<T, C>(out, out_stride, sums, R, bias, columns);
}

// A packed panel, or the part that a worker has packed.
template <typename T>
struct Panel {
    const T* from;
    int64_t width, units;  // columns, and units of a column

    static constexpr int64_t kEach = Units<T>::kNumbers;
    int64_t step() const { return width * kEach; }
    int64_t bytes() const { return units * step() * static_cast<int64_t>(sizeof(T)); }
    const T* tile(int64_t column, int64_t unit) const {
        return from + unit * step() + column * kEach;
    }
};

// Where a block of rows goes.
template <typename T>
struct Destination {
    T* out;  // first row and column
    int64_t stride;
    const T* bias;    // of the first column, or null
    int64_t columns;  // results from the first column on
};

// Multiplies rows by whole panels where registers hold few sums: a panel in chunks of inputs, a
// chunk tile by tile, a tile by all blocks of rows. Sums stay in the cache from chunk to chunk.
template <typename T>
class ChunkedPanel {
public:
    static constexpr int64_t kMaxRows = 384;  // their x and sums fit a core's cache
    // With so few rows weights are widened in registers; opening a tile costs more.
    static constexpr int kInlineRows = kBlockRows < 5 ? kBlockRows : 5;

    explicit ChunkedPanel(int64_t rows)
        : totals_(make_buffer<float>(rows > 1 ? std::min(rows, kMaxRows) * kPanel : 0)),
          opened_(make_buffer<float>(rows > kInlineRows ? kOpenedDepth * kLanes : 0)) {}

    void multiply(const Destination<T>& to, const float* x, int64_t x_stride, int64_t rows,
                  const Panel<T>& panel) const {
        if (rows == 1) return single_row(to, x, panel);
        for (int64_t row = 0; row < rows; row += kMaxRows)
            several_rows({to.out + row * to.stride, to.stride, to.bias, to.columns},
                         x + row * x_stride, x_stride, std::min(kMaxRows, rows - row), panel);
    }

private:
    static constexpr int64_t kEach = Units<T>::kNumbers, kChunkUnits = kOpenedDepth / kEach;

    static void single_row(const Destination<T>& to, const float* x, const Panel<T>& panel) {
        constexpr int kMany = kBlockTiles<1>;
        int64_t column = 0;
        const auto run = [&](auto tiles) {
            constexpr int C = decltype(tiles)::value;
            const char* from = reinterpret_cast<const char*>(panel.from);
            const int64_t step = panel.step() * static_cast<int64_t>(sizeof(T));
            block<T, 1, C>(to.out + column, to.stride, x, 0, panel.tile(column, 0), panel.step(),
                           panel.units, to.bias ? to.bias + column : nullptr, to.columns - column,
                           column ? Prefetch() : Prefetch{from + kFetchAhead, step});
            column += C * kLanes;
        };
        while (column + kMany * kLanes <= panel.width) run(Count<kMany>());
        while (column < panel.width) run(Count<1>());
    }

    void several_rows(const Destination<T>& to, const float* x, int64_t x_stride, int64_t rows,
                      const Panel<T>& panel) const {
        std::memset(totals_.get(), 0, rows * kPanel * sizeof(float));
        for (int64_t unit = 0; unit < panel.units; unit += kChunkUnits) {
            const Panel<T> chunk = {panel.tile(0, unit), panel.width,
                                    std::min(kChunkUnits, panel.units - unit)};
            rows <= kInlineRows ? add_inline(x + unit * kEach, x_stride, rows, chunk)
                                : add_opened(x + unit * kEach, x_stride, rows, chunk);
        }
        const auto* sums = reinterpret_cast<const Floats(*)[kTiles]>(totals_.get());
        put<T, kTiles>(to.out, to.stride, sums, rows, to.bias, to.columns);
    }

    float* total(int64_t row, int64_t column) const {
        return totals_.get() + row * kPanel + column;
    }

    // Prefetches pass `at` of `passes` over a chunk: its share of the next chunk, which follows.
    static Prefetch next_chunk(const Panel<T>& chunk, int64_t at, int64_t passes, int64_t steps) {
        const int64_t share = (chunk.bytes() + passes - 1) / passes;
        const char* from = reinterpret_cast<const char*>(chunk.from) + chunk.bytes();
        return {from + at * share, (share + steps - 1) / steps};
    }

    void add_inline(const float* x, int64_t x_stride, int64_t rows, const Panel<T>& chunk) const {
        in_even_blocks<kInlineRows>(rows, [&](auto own, int64_t row, int64_t b, int64_t blocks) {
            constexpr int R = decltype(own)::value, kMany = kBlockTiles<R>;
            int64_t column = 0;
            const auto run = [&](auto tiles) {
                constexpr int C = decltype(tiles)::value;
                Floats sums[R][C];
                for (int r = 0; r < R; ++r)
                    for (int c = 0; c < C; ++c)
                        sums[r][c] = load(total(row + r, column + c * kLanes));
                const int64_t passes = chunk.width / (C * kLanes);
                add_block<T, R, C>(sums, x + row * x_stride, x_stride, chunk.tile(column, 0),
                                   chunk.step(), chunk.units,
                                   next_chunk(chunk, b * passes + column / (C * kLanes),
                                              blocks * passes, chunk.units));
                for (int r = 0; r < R; ++r)
                    for (int c = 0; c < C; ++c)
                        store(total(row + r, column + c * kLanes), sums[r][c]);
                column += C * kLanes;
            };
            while (column + kMany * kLanes <= chunk.width) run(Count<kMany>());
            while (column < chunk.width) run(Count<1>());
        });
    }

    void add_opened(const float* x, int64_t x_stride, int64_t rows, const Panel<T>& chunk) const {
        const int64_t depth = chunk.units * kEach, tiles = chunk.width / kLanes;
        for (int64_t tile = 0; tile < tiles; ++tile) {
            open_tile(opened_.get(), chunk.tile(tile * kLanes, 0), chunk.step(), chunk.units);
            in_even_blocks<kBlockRows>(rows, [&](auto own, int64_t row, int64_t b, int64_t blocks) {
                constexpr int R = decltype(own)::value;
                Floats sums[R][1];
                for (int r = 0; r < R; ++r) sums[r][0] = load(total(row + r, tile * kLanes));
                multiply_opened<R>(sums, x + row * x_stride, x_stride, opened_.get(), depth,
                                   next_chunk(chunk, tile * blocks + b, tiles * blocks, depth));
                for (int r = 0; r < R; ++r) store(total(row + r, tile * kLanes), sums[r][0]);
            });
        }
    }

    const Buffer<float> totals_, opened_;
};

}  // namespace
