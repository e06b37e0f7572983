// Distributes weight panels to workers, and writes their sums: shared by all kernels for quantized
// weights.
//
// A worker has multiply(weight, panel, first, last), which multiplies these rows of x by a panel,
// and fetch_first(weight, panel), for a panel that was not prefetched. There is one worker per
// thread.
#pragma once

#include <algorithm>
#include <memory>

#include "cpu/gemm/linear.h"
#include "cpu/threading/parallel.h"
#include "cpu/gemm/tiles.h"

namespace {

constexpr int64_t kParallelProducts = 1 << 17;  // below this a second thread does not pay
constexpr int64_t kRowsAtOnce = 384;  // rows of x that fit a core's cache together with a panel
constexpr int64_t kCacheLine = 64;    // bytes

inline int64_t rounded_up(int64_t number, int64_t to) { return (number + to - 1) / to * to; }

// Calls body(T()) with the element type T.
template <typename Body>
void with_dtype(int32_t dtype, Body body) {
    dtype == kFloat32 ? body(float()) : dtype == kBFloat16 ? body(BFloat16()) : body(Float16());
}

// Destination of the sums.
struct ResultWriter {
    void* to;
    int64_t stride;
    int32_t dtype;

    ResultWriter(const Product& p, int32_t dtype)
        : to(p.result), stride(p.result_stride), dtype(dtype) {}

    // Writes the rows from `row` and the tiles from `column`, of which `left` columns are results.
    template <int C>
    void write(int64_t row, int64_t column, const Floats (*totals)[C], int64_t rows,
               int64_t left) const {
        with_dtype(dtype, [&](auto number) {
            auto* out = static_cast<decltype(number)*>(to) + row * stride + column;
            for (int64_t r = 0; r < rows; ++r, out += stride)
                for (int c = 0; c < C && c * kLanes < left; ++c)
                    left - c* kLanes >= kLanes
                        ? store(out + c * kLanes, totals[r][c])
                        : store(out + c * kLanes, totals[r][c], left - c * kLanes);
        });
    }
};

// Writes unpacked numbers as elements of any dtype.
inline void write_numbers(void* out, int64_t at, const float* numbers, int64_t count,
                          int32_t dtype) {
    with_dtype(dtype, [&](auto number) {
        auto* to = static_cast<decltype(number)*>(out) + at;
        for (int64_t k = 0; k < count; k += kLanes)
            count - k >= kLanes ? store(to + k, load(numbers + k))
                                : store(to + k, load(numbers + k, count - k), count - k);
    });
}

// Multiplies all rows of x by all panels. `make` creates a worker.
template <typename Make>
void multiply_panels(const Product& p, int64_t panels, Make make) {
    const int64_t parts = (p.rows + kRowsAtOnce - 1) / kRowsAtOnce;
    run_workers(panels * parts, p.rows * p.out * p.in >= kParallelProducts, [&](WorkItems& items) {
        auto worker = make();
        for (int64_t i, expected = -1; items.next(&i);) {
            const int64_t part = i / panels, panel = i % panels;
            if (i != expected) worker.fetch_first(p.weight, panel);
            worker.multiply(p.weight, panel, p.rows * part / parts, p.rows * (part + 1) / parts);
            expected = panel + 1 < panels ? i + 1 : -1;
        }
    });
}

// Rows of x grouped by weight.
struct GroupedRows {
    std::unique_ptr<int64_t[]> groups_used, begins;  // weights with rows, and their first rows
    int64_t count = 0, rows = 0, max_rows = 0;

    GroupedRows(const int64_t* counts, int64_t groups)
        : groups_used(new int64_t[groups]), begins(new int64_t[groups + 1]) {
        for (int64_t group = 0; group < groups; ++group) {
            if (!counts[group]) continue;
            groups_used[count] = group;
            begins[count++] = rows;
            rows += counts[group];
            max_rows = std::max(max_rows, counts[group]);
        }
        begins[count] = rows;
    }
};

// Like multiply_panels, for consecutive weights of `bytes` each.
template <typename Make>
void multiply_groups(const Product& p, const GroupedRows& own, int64_t panels, int64_t bytes,
                     Make make) {
    run_workers(
        own.count * panels, own.rows * p.out * p.in >= kParallelProducts, [&](WorkItems& items) {
            auto worker = make();
            for (int64_t i; items.next(&i);) {
                const int64_t group = i / panels;
                const void* weight =
                    static_cast<const char*>(p.weight) + own.groups_used[group] * bytes;
                worker.multiply(weight, i % panels, own.begins[group], own.begins[group + 1]);
            }
        });
}

}  // namespace
