// Online softmax: the weights of a KV tile's keys for one row, and the running sums.
//
// Scores are logarithms to base two. Each function is one piece of machine code for all rows, never
// part of a loop over some of them, so results are bitwise batch-invariant.
#pragma once

#include <limits>

#include "cpu/attention/attention.h"
#include "cpu/buffer.h"
#include "cpu/gemm/tiles.h"

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504f;

inline Floats maximum(Floats a, Floats b) { return select(a > b, a, b); }

inline float largest(Floats v) {
    return reduce(v, [](auto a, auto b) { return select(a > b, a, b); });
}

// 2^x for x <= 0, within two units in the last place; 0 for x <= -127 and minus infinity. NaN stays
// NaN.
inline Floats power_of_two(Floats x) {
    x = select(x < -127.0f, spread(-127.0f), x);
    const float to_integer = 0x1.8p23f;  // adding 1.5 * 2^23 rounds to an integer
    const Floats shifted = x + to_integer, r = x - (shifted - to_integer);
    Floats p = spread(1.3264727786e-3f);  // minimal relative error over [-0.5, 0.5], exactly 1 at 0
    p = p * r + 9.6715129970e-3f;
    p = p * r + 5.5507337440e-2f;
    p = p * r + 2.4022242079e-1f;
    p = p * r + 6.9314697760e-1f;
    p = p * r + 1.0f;
    return (Floats)((Ints)p + (((Ints)shifted - 0x4b400000) << 23));
}

inline float power_of_two(float x) { return power_of_two(spread(x))[0]; }

inline Floats tanh_of(Floats x) {
    const Floats square = x * x, large = 2.0f * sigmoid(2.0f * x) - 1.0f;
    const Floats small =
        x * (1.0f + square * (-1.0f / 3 + square * (2.0f / 15 + square * (-17.0f / 315))));
    return select(square < 0.04f, small, large);  // `small` keeps full precision near zero
}

template <typename T>
inline void store_weights(T* to, Floats weights) {
    store(to, weights);
}

#if defined(__AVX512BF16__)
template <>
inline void store_weights(BFloat16* to, Floats weights) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        (__m256i)_mm512_cvtneps_pbh((__m512)weights));
}
#endif

// Running sums per row: the maximum score, the weight sum lane by lane, and the weighted value sum.
struct Sums {
    int64_t padded_width = 0;  // width of a value row, padded to whole tiles
    Buffer<float> values, weight_sums;
    std::unique_ptr<float[]> max_score;

    Sums() = default;
    Sums(int64_t rows, int64_t size)
        : padded_width((size + kLanes - 1) / kLanes * kLanes),
          values(make_buffer<float>(rows * padded_width)),
          weight_sums(make_buffer<float>(rows * kLanes)),
          max_score(new float[rows]) {}

    void clear(int64_t rows) {
        std::memset(values.get(), 0, rows * padded_width * sizeof(float));
        std::memset(weight_sums.get(), 0, rows * kLanes * sizeof(float));
        for (int64_t r = 0; r < rows; ++r) max_score[r] = kMinusInfinity;
    }

    bool empty(int64_t row) const {  // false for NaN: its weight sum is NaN too
        return max_score[row] == kMinusInfinity && sum(load(&weight_sums[row * kLanes])) == 0;
    }

    // Adds the sums of the next segment.
    void merge(const Sums& part, int64_t rows) {
        for (int64_t r = 0; r < rows; ++r) {
            if (part.empty(r)) continue;
            float own_scale = 0, part_scale = 1;
            if (!empty(r)) {
                const float before = max_score[r], more = part.max_score[r],
                            now = more > before ? more : before;
                const float base = now == kMinusInfinity ? 0 : now;
                own_scale = power_of_two(before - base), part_scale = power_of_two(more - base);
                max_score[r] = now;
            } else {
                max_score[r] = part.max_score[r];
            }
            add(&weight_sums[r * kLanes], &part.weight_sums[r * kLanes], kLanes, own_scale,
                part_scale);
            add(&values[r * padded_width], &part.values[r * padded_width], padded_width, own_scale,
                part_scale);
        }
    }

private:
    static void add(float* to, const float* more, int64_t count, float own_scale,
                    float part_scale) {
        for (int64_t i = 0; i < count; i += kLanes)
            store(to + i, load(to + i) * own_scale + load(more + i) * part_scale);
    }
};

// Computes final scores from raw products where more than a scale is needed (softcap, ALiBi, mask).
// The row sees positions [first, end); the first key is at `position`.
__attribute__((noinline)) void mask_scores(const PagedAttention& a, float slope, int64_t first,
                                           int64_t end, int64_t position,
                                           Floats (&scores)[kTiles]) {
    constexpr int32_t kNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const Ints lanes = Memory<Ints>::load(kNumbers);
    for (int t = 0; t < kTiles; ++t) {
        const Ints positions = lanes + static_cast<int32_t>(position + t * kLanes);
        Floats score = scores[t] * a.scale;
        if (a.softcap != 0) score = tanh_of(score / a.softcap) * a.softcap;
        if (a.alibi)
            score += slope * convert<Floats>(positions - static_cast<int32_t>(end - 1));
        const Ints visible =
            (positions >= static_cast<int32_t>(first)) & (positions < static_cast<int32_t>(end));
        scores[t] = select(visible, score * kLog2E, spread(kMinusInfinity));
    }
}

// Computes the softmax weights of scores times `factor`. Returns the factor that rescales the row's
// value sums.
template <typename T>
__attribute__((noinline)) float softmax_weights(const Floats (&scores)[kTiles], float factor,
                                                T* weights, float* max_score, float* weight_sums) {
    Floats score[kTiles], best = spread(kMinusInfinity);
    for (int t = 0; t < kTiles; ++t) best = maximum(score[t] = scores[t] * factor, best);
    const float before = *max_score, largest_new = largest(best),
                now = largest_new > before ? largest_new : before;
    const float base = now == kMinusInfinity ? 0 : now;
    Floats sum = {};
    for (int t = 0; t < kTiles; ++t) {
        const Floats weight = power_of_two(score[t] - base);
        sum += weight;
        store_weights(weights + t * kLanes, weight);
    }
    const float rescale = now == before ? 1.0f : power_of_two(before - base);
    *max_score = now;
    store(weight_sums, load(weight_sums) * rescale + sum);
    return rescale;
}

}  // namespace
