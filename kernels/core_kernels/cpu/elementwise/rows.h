// Parallel loops over rows, and activations. Include "cpu/vectors.h" first.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/threading/parallel.h"

namespace {

constexpr int64_t kParallelNumbers = 1 << 15;  // below this a second thread does not pay
constexpr int64_t kPieceNumbers = 1 << 13;

// Calls body(row) for every row, on several threads when there is enough work.
template <typename Body>
inline void for_rows(int64_t rows, int64_t width, Body body) {
    const int64_t each = std::max<int64_t>(1, kPieceNumbers / std::max<int64_t>(1, width));
    run_workers((rows + each - 1) / each, rows * width >= kParallelNumbers, [&](WorkItems& items) {
        for (int64_t item; items.next(&item);)
            for (int64_t row = item * each, end = std::min(rows, row + each); row < end; ++row)
                body(row);
    });
}

inline Floats silu(Floats x) { return x * sigmoid(x); }

// x / 2 * (1 + tanh(u)) equals x * sigmoid(2u), which has no cancellation for very negative u.
inline Floats gelu_tanh(Floats x) {
    return x * sigmoid(x * (1.5957691216f + 0.0713548162726f * x * x));
}

}  // namespace
