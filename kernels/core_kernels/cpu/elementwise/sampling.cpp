// Sampling from logits; compiled once per instruction set. Each row depends on that row only.
#define PAIRED_VECTORS
#include "cpu/elementwise/sampling.h"

#include <limits>
#include <memory>

#include "cpu/variant.h"
#include "cpu/vectors.h"
#include "cpu/threading/parallel.h"

namespace {

constexpr int64_t kParallelNumbers = 1 << 15;  // below this a second thread does not pay
constexpr int64_t kSpan = 128;  // numbers summed first, so that the search within a span is short
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

template <typename Body>
void for_each_row(const Logits& logits, Body body) {
    run_workers(logits.rows, logits.rows * logits.width >= kParallelNumbers, [&](WorkItems& items) {
        for (int64_t row; items.next(&row);) body(row, logits.values + row * logits.row_stride);
    });
}

inline Floats load_some(const float* from, int64_t count, float rest) {
    if (count >= kLanes) return load(from);
    Floats v = spread(rest);
    std::memcpy(&v, from, count * sizeof(float));
    return v;
}

inline float largest(Floats v) {
    return reduce(v, [](auto a, auto b) { return select(a > b, a, b); });
}

inline bool any(Ints lanes) {
    return reduce(lanes, [](auto a, auto b) { return a | b; }) != 0;
}

struct RowMax {
    float value;
    bool has_no_nan;  // the row has no NaN
};

inline RowMax row_max(const float* row, int64_t width) {
    Floats max_logit[4];
    Ints nan = {};
    for (Floats& each : max_logit) each = spread(kMinusInfinity);
    int64_t i = 0;
    for (; i + 4 * kLanes <= width; i += 4 * kLanes)
        for (int k = 0; k < 4; ++k) {
            const Floats v = load(row + i + k * kLanes);
            max_logit[k] = select(v > max_logit[k], v, max_logit[k]);
            nan |= v != v;
        }
    for (; i < width; i += kLanes) {
        const Floats v = load_some(row + i, width - i, kMinusInfinity);
        max_logit[0] = select(v > max_logit[0], v, max_logit[0]);
        nan |= v != v;
    }
    for (int k = 1; k < 4; ++k)
        max_logit[0] = select(max_logit[k] > max_logit[0], max_logit[k], max_logit[0]);
    return {largest(max_logit[0]), !any(nan)};
}

void argmax(float* values, int64_t* tokens, Logits logits) {
    for_each_row(logits, [=](int64_t row, const float* scores) {
        const RowMax max_logit = row_max(scores, logits.width);
        int64_t i = 0;
        if (max_logit.has_no_nan)
            while (i + kLanes < logits.width && !any(load(scores + i) == max_logit.value))
                i += kLanes;
        while (i + 1 < logits.width &&
               (max_logit.has_no_nan ? scores[i] != max_logit.value : scores[i] == scores[i]))
            ++i;
        values[row] = scores[i];
        tokens[row] = i;
    });
}

inline Floats weights_at(const float* row, int64_t i, int64_t width, float max_logit) {
    const Floats below = load_some(row + i, width - i, kMinusInfinity) - max_logit;
    // Masked tokens have weight zero; exp clamps there.
    return select(below > -87.0f, exp(below), Floats{});
}

int64_t token_at(const float* row, int64_t width, double uniform) {
    const RowMax max_logit = row_max(row, width);
    if (!max_logit.has_no_nan || max_logit.value == kMinusInfinity)
        return 0;  // nothing to choose; the caller sees it in the value
    const int64_t spans = (width + kSpan - 1) / kSpan;
    std::unique_ptr<double[]> ends(new double[spans]);
    double total = 0;
    for (int64_t span = 0; span < spans; ++span) {
        Floats sum = {};
        const int64_t end = std::min(width, (span + 1) * kSpan);
        for (int64_t i = span * kSpan; i < end; i += kLanes)
            sum += weights_at(row, i, end, max_logit.value);
        ends[span] = total += ::sum(sum);
    }
    const double target = uniform * total;
    int64_t span = std::upper_bound(ends.get(), ends.get() + spans, target) - ends.get();
    if (span == spans) --span;
    double reached = span ? ends[span - 1] : 0.0;
    int64_t last = -1;
    const int64_t end = std::min(width, (span + 1) * kSpan);
    for (int64_t i = span * kSpan; i < end; i += kLanes) {
        const Floats weights = weights_at(row, i, end, max_logit.value);
        for (int k = 0; k < kLanes && i + k < end; ++k) {
            if (!(weights[k] > 0)) continue;
            last = i + k;
            if ((reached += weights[k]) > target) return last;
        }
    }
    if (last >= 0) return last;  // rounding passed the last possible token
    int64_t token = 0;
    while (row[token] != max_logit.value) ++token;
    return token;
}

void sample(int64_t* tokens, Logits logits, const double* uniform) {
    for_each_row(logits, [=](int64_t row, const float* scores) {
        tokens[row] = token_at(scores, logits.width, uniform[row]);
    });
}

}  // namespace

extern const SamplingOps TABLE(sampling_);
const SamplingOps TABLE(sampling_) = {argmax, sample};
