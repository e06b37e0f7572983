// Elementwise operations and layer norm; compiled once per instruction set. Rounding matches torch,
// so a recorded step gives the same bits.
#define PAIRED_VECTORS
#include "cpu/elementwise/elementwise.h"

#include <cmath>

#include "cpu/variant.h"
#include "cpu/vectors.h"
#include "cpu/elementwise/rows.h"

namespace {

template <typename T>
inline Floats load_lanes(const T* from, int64_t left) {
    return left < kLanes ? load(from, left) : load(from);
}

template <typename T>
inline void store_lanes(T* to, Floats value, int64_t left) {
    left < kLanes ? store(to, value, left) : store(to, value);
}

// Abramowitz and Stegun 7.1.26; error below 1.5e-7.
inline Floats erf_of(Floats x) {
    const Floats size = select(x < 0.0f, -x, x), t = 1.0f / (1.0f + 0.3275911f * size);
    const Floats sum =
        ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t +
         0.254829592f) *
        t;
    const Floats value = 1.0f - sum * exp(-(size * size));
    return select(x < 0.0f, -value, value);
}

struct Add {
    Floats operator()(Floats a, Floats b) const { return a + b; }
};
struct Multiply {
    Floats operator()(Floats a, Floats b) const { return a * b; }
};
struct Relu {
    Floats operator()(Floats a, Floats) const { return select(a < 0.0f, Floats{}, a); }
};
struct Square {
    Floats operator()(Floats a, Floats) const { return a * a; }
};
struct Gelu {
    Floats operator()(Floats a, Floats) const {
        return a * 0.5f * (1.0f + erf_of(a * 0.70710678118654752f));
    }
};
struct GeluByTanh {
    Floats operator()(Floats a, Floats) const { return gelu_tanh(a); }
};
struct SiluOp {
    Floats operator()(Floats a, Floats) const { return silu(a); }
};
struct SigmoidOp {
    Floats operator()(Floats a, Floats) const { return sigmoid(a); }
};

template <typename T, typename F>
void each(const Elements& e) {
    for_rows(e.rows, e.width, [&](int64_t row) {
        const T* a = static_cast<const T*>(e.a) + row * e.a_row;
        const T* b = e.b ? static_cast<const T*>(e.b) + row * e.b_row : nullptr;
        T* out = static_cast<T*>(e.out) + row * e.out_row;
        const bool spreads = b && e.b_column == 0;
        const Floats other = spread(spreads ? load(b, 1)[0] : e.scalar);
        const F f;
        for (int64_t i = 0; i < e.width; i += kLanes) {
            const int64_t left = e.width - i;
            store_lanes(out + i,
                        f(load_lanes(a + i, left), b && !spreads ? load_lanes(b + i, left) : other),
                        left);
        }
    });
}

template <typename F>
void of_type(const Elements& e, int32_t dtype) {
    (dtype == kFloat32    ? each<float, F>
     : dtype == kBFloat16 ? each<BFloat16, F>
                          : each<Float16, F>)(e);
}

void elementwise(const Elements& e, int32_t kind, int32_t dtype) {
    switch (kind) {
        case kAdd: return of_type<Add>(e, dtype);
        case kMultiply: return of_type<Multiply>(e, dtype);
        case kRelu: return of_type<Relu>(e, dtype);
        case kSquare: return of_type<Square>(e, dtype);
        case kGelu: return of_type<Gelu>(e, dtype);
        case kGeluByTanh: return of_type<GeluByTanh>(e, dtype);
        case kSiluOf: return of_type<SiluOp>(e, dtype);
        case kSigmoidOf: return of_type<SigmoidOp>(e, dtype);
    }
}

template <typename T>
void layer_norm(void* out, const void* x, const void* weight, const void* bias, Grid grid,
                float eps) {
    for_rows(grid.outer * grid.inner, grid.width, [=](int64_t row) {
        const T* from = static_cast<const T*>(x) + row / grid.inner * grid.outer_stride +
                        row % grid.inner * grid.inner_stride;
        const T *scale = static_cast<const T*>(weight), *added = static_cast<const T*>(bias);
        T* to = static_cast<T*>(out) + row * grid.width;
        const int64_t width = grid.width, whole = width / kLanes * kLanes;
        Floats sums = {};
        for (int64_t i = 0; i < width; i += kLanes) sums += load_lanes(from + i, width - i);
        const float mean = sum(sums) / static_cast<float>(width);
        Floats squares = {};
        for (int64_t i = 0; i < whole; i += kLanes) {
            const Floats apart = load(from + i) - mean;
            squares += apart * apart;
        }
        float variance = sum(squares);
        for (int64_t i = whole; i < width; ++i) {
            const float apart = load(from + i, 1)[0] - mean;
            variance += apart * apart;
        }
        const float factor = 1.0f / std::sqrt(variance / static_cast<float>(width) + eps);
        for (int64_t i = 0; i < width; i += kLanes) {
            const int64_t left = width - i;
            Floats value = (load_lanes(from + i, left) - mean) * factor;
            if (scale) value = value * load_lanes(scale + i, left);
            if (added) value = value + load_lanes(added + i, left);
            store_lanes(to + i, value, left);
        }
    });
}

void any_layer_norm(void* out, const void* x, const void* weight, const void* bias, Grid grid,
                    float eps, int32_t dtype) {
    auto run = dtype == kFloat32    ? layer_norm<float>
               : dtype == kBFloat16 ? layer_norm<BFloat16>
                                    : layer_norm<Float16>;
    run(out, x, weight, bias, grid, eps);
}

}  // namespace

extern const ElementOps TABLE(element_ops_);
const ElementOps TABLE(element_ops_) = {elementwise, any_layer_norm};
