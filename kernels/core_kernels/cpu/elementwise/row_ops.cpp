// Operations on rows; compiled once per instruction set (VARIANT).
//
// Each row's result depends on that row only: bitwise batch-invariant, for any number of threads.
#define PAIRED_VECTORS
#include "cpu/elementwise/row_ops.h"

#include <cmath>

#include "cpu/variant.h"
#include "cpu/vectors.h"

#include "cpu/elementwise/rows.h"

namespace {

// Calls body(outer, inner) for every row of the grid.
template <typename Body>
inline void for_rows(const Grid& grid, Body body) {
    for_rows(grid.outer * grid.inner, grid.width,
             [&](int64_t row) { body(row / grid.inner, row % grid.inner); });
}

template <typename T>
inline float inverse_rms(const T* x, int64_t width, float eps) {
    Floats squares = {}, more = {};
    int64_t i = 0;
    for (; i + 2 * kLanes <= width;
         i += 2 * kLanes) {  // two accumulators hide the latency of additions
        Floats a = load(x + i), b = load(x + i + kLanes);
        squares += a * a;
        more += b * b;
    }
    for (; i < width; i += kLanes) {
        Floats a = width - i < kLanes ? load(x + i, width - i) : load(x + i);
        squares += a * a;
    }
    return 1.0f / std::sqrt(sum(squares + more) / static_cast<float>(width) + eps);
}

template <typename T>
inline void scale_row(T* out, const T* x, const T* weight, int64_t width, float factor,
                      float offset) {
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
        store(out + i, load(x + i) * factor * (load(weight + i) + offset));
    if (const int64_t rest = width - i)
        store(out + i, load(x + i, rest) * factor * (load(weight + i, rest) + offset), rest);
}

template <typename T>
void rms_norm(void* out, const void* x, const void* weight, Grid grid, float eps, float offset) {
    for_rows(grid, [=](int64_t outer, int64_t inner) {
        const T* row =
            static_cast<const T*>(x) + outer * grid.outer_stride + inner * grid.inner_stride;
        T* to = static_cast<T*>(out) + (outer * grid.inner + inner) * grid.width;
        scale_row(to, row, static_cast<const T*>(weight), grid.width,
                  inverse_rms(row, grid.width, eps), offset);
    });
}

template <typename T>
void add_rms_norm(void* x, void* residual, const void* weight, Grid grid, int64_t residual_stride,
                  float eps, float offset) {
    for_rows(grid, [=](int64_t outer, int64_t) {
        T* row = static_cast<T*>(x) + outer * grid.outer_stride;
        T* total = static_cast<T*>(residual) + outer * residual_stride;
        int64_t i = 0;
        for (; i + kLanes <= grid.width; i += kLanes)
            store(total + i, load(row + i) + load(total + i));
        if (const int64_t rest = grid.width - i)
            store(total + i, load(row + i, rest) + load(total + i, rest), rest);
        scale_row(row, total, static_cast<const T*>(weight), grid.width,
                  inverse_rms(total, grid.width, eps), offset);
    });
}

struct Silu {
    Floats operator()(Floats x) const { return silu(x); }
};

struct GeluTanh {
    Floats operator()(Floats x) const { return gelu_tanh(x); }
};

template <typename T, typename Act>
void gated(void* out, const void* x, Grid grid) {
    for_rows(grid, [=](int64_t outer, int64_t) {
        const T* gate = static_cast<const T*>(x) + outer * grid.outer_stride;
        const T* up = gate + grid.width;
        T* to = static_cast<T*>(out) + outer * grid.width;
        const Act act;
        int64_t i = 0;
        for (; i + kLanes <= grid.width; i += kLanes)
            store(to + i, act(load(gate + i)) * load(up + i));
        if (const int64_t rest = grid.width - i)
            store(to + i, act(load(gate + i, rest)) * load(up + i, rest), rest);
    });
}

template <typename T>
inline void rotate_halves(T* head, const float* cos, const float* sin, int64_t half) {
    for (int64_t i = 0; i < half; i += kLanes) {
        const int64_t count = half - i < kLanes ? half - i : kLanes;
        const bool whole = count == kLanes;
        T *low = head + i, *high = head + half + i;
        Floats a = whole ? load(low) : load(low, count), b = whole ? load(high) : load(high, count);
        Floats c = whole ? load(cos + i) : load(cos + i, count),
               s = whole ? load(sin + i) : load(sin + i, count);
        if (whole) {
            store(low, a * c - b * s);
            store(high, b * c + a * s);
        } else {
            store(low, a * c - b * s, count);
            store(high, b * c + a * s, count);
        }
    }
}

template <typename T>
inline void rotate_pairs(T* head, const float* cos, const float* sin, int64_t half) {
    for (int64_t i = 0; i < half; i += kLanes / 2) {
        const int64_t count = half - i < kLanes / 2 ? half - i : kLanes / 2;
        float pairs[kLanes];
        store(pairs, load(head + 2 * i, 2 * count));
        for (int64_t j = 0; j < count; ++j) {
            const float a = pairs[2 * j], b = pairs[2 * j + 1], c = cos[i + j], s = sin[i + j];
            pairs[2 * j] = a * c - b * s;
            pairs[2 * j + 1] = b * c + a * s;
        }
        store(head + 2 * i, load(pairs), 2 * count);
    }
}

template <typename T>
void rotary(void* x, const float* cos_sin, const int64_t* positions, Grid grid, int64_t rotary_size,
            int32_t interleaved) {
    for_rows(grid, [=](int64_t token, int64_t index) {
        T* head = static_cast<T*>(x) + token * grid.outer_stride + index * grid.inner_stride;
        const int64_t half = rotary_size / 2;
        const float* cos = cos_sin + positions[token] * rotary_size;
        if (interleaved)
            rotate_pairs(head, cos, cos + half, half);
        else
            rotate_halves(head, cos, cos + half, half);
    });
}

template <typename T>
void widen(float* out, const void* x, Grid grid) {
    for_rows(grid, [=](int64_t outer, int64_t) {
        const T* row = static_cast<const T*>(x) + outer * grid.outer_stride;
        float* to = out + outer * grid.width;
        int64_t i = 0;
        for (; i + kLanes <= grid.width; i += kLanes) store(to + i, load(row + i));
        if (const int64_t rest = grid.width - i) store(to + i, load(row + i, rest), rest);
    });
}

// --- one function per element type, chosen by number
// --------------------------------------------------------

void any_rms_norm(void* out, const void* x, const void* weight, Grid grid, float eps, float offset,
                  int32_t dtype) {
    auto run = dtype == kFloat32    ? rms_norm<float>
               : dtype == kBFloat16 ? rms_norm<BFloat16>
                                    : rms_norm<Float16>;
    run(out, x, weight, grid, eps, offset);
}

void any_add_rms_norm(void* x, void* residual, const void* weight, Grid grid,
                      int64_t residual_stride, float eps, float offset, int32_t dtype) {
    auto run = dtype == kFloat32    ? add_rms_norm<float>
               : dtype == kBFloat16 ? add_rms_norm<BFloat16>
                                    : add_rms_norm<Float16>;
    run(x, residual, weight, grid, residual_stride, eps, offset);
}

template <typename Act>
void gated_by(void* out, const void* x, Grid grid, int32_t dtype) {
    auto run = dtype == kFloat32    ? gated<float, Act>
               : dtype == kBFloat16 ? gated<BFloat16, Act>
                                    : gated<Float16, Act>;
    run(out, x, grid);
}

void any_gated(void* out, const void* x, Grid grid, int32_t activation, int32_t dtype) {
    (activation == kSilu ? gated_by<Silu> : gated_by<GeluTanh>)(out, x, grid, dtype);
}

void any_rotary(void* x, const float* cos_sin, const int64_t* positions, Grid grid,
                int64_t rotary_size, int32_t interleaved, int32_t dtype) {
    auto run = dtype == kFloat32    ? rotary<float>
               : dtype == kBFloat16 ? rotary<BFloat16>
                                    : rotary<Float16>;
    run(x, cos_sin, positions, grid, rotary_size, interleaved);
}

void any_widen(float* out, const void* x, Grid grid, int32_t dtype) {
    auto run = dtype == kFloat32    ? widen<float>
               : dtype == kBFloat16 ? widen<BFloat16>
                                    : widen<Float16>;
    run(out, x, grid);
}

}  // namespace

extern const RowOps TABLE(row_ops_);
const RowOps TABLE(row_ops_) = {any_rms_norm, any_add_rms_norm, any_gated, any_rotary, any_widen};
