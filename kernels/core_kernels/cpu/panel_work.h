// Panels of a weight shared out to workers, and what they do with sums: what all kernels of stored numbers have in common.
//
// A worker has multiply(weight, panel, first, last), which multiplies these rows of x by a panel, and fetch_first(weight,
// panel), for the panel that nobody before it has fetched. Each thread has one of its own.
#pragma once

#include <algorithm>
#include <memory>

#include "linear.h"
#include "parallel.h"
#include "tiles.h"

namespace {

constexpr int64_t kParallelProducts = 1 << 17;  // below this a second thread costs more than it saves
constexpr int64_t kRowsAtOnce = 384;            // rows of x that stay in a core's cache beside a panel
constexpr int64_t kLineBytes = 64;              // that are fetched together

inline int64_t rounded_up(int64_t number, int64_t to) { return (number + to - 1) / to * to; }

// Calls body(T()) for elements of type T.
template <typename Body>
void with_dtype(int32_t dtype, Body body) {
    dtype == kFloat32 ? body(float()) : dtype == kBFloat16 ? body(BFloat16()) : body(Float16());
}

// Where sums go.
struct Results {
    void* to;
    int64_t stride;
    int32_t dtype;

    Results(const Product& p, int32_t dtype) : to(p.result), stride(p.result_stride), dtype(dtype) {}

    // Of rows from `row` on and tiles from a column on, of which `left` are results.
    template <int C>
    void put(int64_t row, int64_t column, const Floats (*totals)[C], int64_t rows, int64_t left) const {
        with_dtype(dtype, [&](auto number) {
            auto* out = static_cast<decltype(number)*>(to) + row * stride + column;
            for (int64_t r = 0; r < rows; ++r, out += stride)
                for (int c = 0; c < C && c * kLanes < left; ++c)
                    left - c * kLanes >= kLanes ? store(out + c * kLanes, totals[r][c])
                                                : store(out + c * kLanes, totals[r][c], left - c * kLanes);
        });
    }
};

// Rows of a weight that numbers were made of, or a part of one, as elements of any type.
inline void put_numbers(void* out, int64_t at, const float* numbers, int64_t count, int32_t dtype) {
    with_dtype(dtype, [&](auto number) {
        auto* to = static_cast<decltype(number)*>(out) + at;
        for (int64_t k = 0; k < count; k += kLanes)
            count - k >= kLanes ? store(to + k, load(numbers + k)) : store(to + k, load(numbers + k, count - k), count - k);
    });
}

// All rows of x times all panels. `make` makes a worker.
template <typename Make>
void multiply_panels(const Product& p, int64_t panels, Make make) {
    const int64_t parts = (p.rows + kRowsAtOnce - 1) / kRowsAtOnce;
    share_out(panels * parts, p.rows * p.out * p.in >= kParallelProducts, [&](Pieces& pieces) {
        auto worker = make();
        for (int64_t i, awaited = -1; pieces.next(&i);) {
            const int64_t part = i / panels, panel = i % panels;
            if (i != awaited) worker.fetch_first(p.weight, panel);
            worker.multiply(p.weight, panel, p.rows * part / parts, p.rows * (part + 1) / parts);
            awaited = panel + 1 < panels ? i + 1 : -1;
        }
    });
}

// Rows of x that are for one of several weights each.
struct Grouped {
    std::unique_ptr<int64_t[]> chosen, begins;  // weights that rows are for, and where those begin
    int64_t count = 0, rows = 0, most = 0;

    Grouped(const int64_t* counts, int64_t groups) : chosen(new int64_t[groups]), begins(new int64_t[groups + 1]) {
        for (int64_t group = 0; group < groups; ++group) {
            if (!counts[group]) continue;
            chosen[count] = group;
            begins[count++] = rows;
            rows += counts[group];
            most = std::max(most, counts[group]);
        }
        begins[count] = rows;
    }
};

// The same as multiply_panels for weights of `bytes` each, one after the other.
template <typename Make>
void multiply_groups(const Product& p, const Grouped& own, int64_t panels, int64_t bytes, Make make) {
    share_out(own.count * panels, own.rows * p.out * p.in >= kParallelProducts, [&](Pieces& pieces) {
        auto worker = make();
        for (int64_t i; pieces.next(&i);) {
            const int64_t group = i / panels;
            const void* weight = static_cast<const char*>(p.weight) + own.chosen[group] * bytes;
            worker.multiply(weight, i % panels, own.begins[group], own.begins[group + 1]);
        }
    });
}

}  // namespace
