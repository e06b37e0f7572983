// Splits the attention of one layer and step into work units.
//
// The rows of a sequence are the query heads of one KV head for each of its tokens. The split does
// not affect results, so it may depend on the number of threads.
#pragma once

#include <algorithm>
#include <vector>

#include "cpu/attention/attention.h"
#include "cpu/attention/kv_tile.h"

namespace {

constexpr int64_t kSegment = 1024;   // positions after which new sums start
constexpr int64_t kRowsAtOnce = 48;  // rows of a sequence that share a pass over its keys
constexpr int64_t kRowsShared =
    96;  // rows of several sequences that share a pass: their sums stay in a core's cache
constexpr int64_t kFewRows = 2 * kRows;  // no more rows are grouped where threads would be idle
constexpr int64_t kRounds = 4;  // minimum number of tasks per thread, where there is enough work
constexpr int64_t kMaxPartialSumBytes = 1 << 26;  // limit of the memory for partial sums

inline VisibleRange visible_range(const PagedAttention& a, int64_t sequence, int64_t token) {
    const int64_t length = a.lengths[sequence];
    if (!a.causal) return {0, length};
    const int64_t position = length - (a.starts[sequence + 1] - token);
    int64_t first = 0;
    if (a.window && position >= a.window) first = position - a.window + 1;
    if (a.chunk) first = position / a.chunk * a.chunk;
    return {first, position + 1};
}

inline int64_t value_size_of(const PagedAttention& a) {
    return a.value_size ? a.value_size : a.head_size;
}

// Consecutive rows of one sequence.
struct Span {
    int64_t sequence;
    int64_t first, rows;
    VisibleRange visible;  // by any of its rows
    int64_t shared;        // positions in blocks shared with the next span
};

// Consecutive spans; several spans where they share a prefix.
struct Task {
    int64_t first_span, last_span, rows;
    VisibleRange visible;  // by any of its rows
    int64_t cost;          // approximate number of row-key pairs
    int64_t reads;         // positions read, summed over the spans

    int64_t first_segment() const { return visible.first / kSegment; }
    int64_t segments() const { return (visible.end - 1) / kSegment - first_segment() + 1; }
};

// The work of one thread for one KV head: a task, or one segment of it.
struct WorkUnit {
    int64_t task;
    int64_t segment;    // -1: all segments in order
    int64_t split;      // index of the task among the split tasks
    int64_t first_sum;  // index of its first segment's partial sums
};

struct WorkSplit {
    std::vector<Span> spans;
    std::vector<Task> tasks;
    std::vector<WorkUnit> units;
    int64_t cost = 0;  // of one KV head
    int64_t max_rows = 0, num_splits = 0, num_partial_sums = 0;

    WorkSplit(const PagedAttention& a, int64_t threads) : a(a), group(a.heads / a.kv_heads) {
        const int64_t all = a.sequences ? (a.starts[a.sequences] - a.starts[0]) * a.heads : 0;
        const int64_t fair = all / (threads * kRounds),
                      min_rows = std::min(kFewRows, (all + threads - 1) / threads);
        const int64_t enough =
            threads == 1 ? kRowsShared : std::max<int64_t>(std::max(fair, min_rows), 1);
        cut_spans(num_parts() >= 2 * threads ? kRowsAtOnce : std::min(enough, kRowsAtOnce));
        join_spans(std::min(enough, kRowsShared), threads);
        std::stable_sort(tasks.begin(), tasks.end(),
                         [](const Task& x, const Task& y) { return x.cost > y.cost; });
        cut_tasks(threads);
    }

private:
    const PagedAttention& a;
    const int64_t group;

    // Number of parts the work can be split into without separating rows that read the same keys.
    int64_t num_parts() const {
        int64_t found = 0;
        for (int64_t i = 0; i < a.sequences; ++i)
            found += ((a.starts[i + 1] - a.starts[i]) * group + kRowsAtOnce - 1) / kRowsAtOnce *
                     ((a.lengths[i] + kSegment - 1) / kSegment) * a.kv_heads;
        return found;
    }

    void cut_spans(int64_t at_once) {
        for (int64_t n = 0; n < a.sequences; ++n) {
            const int64_t i = a.order[n], rows = (a.starts[i + 1] - a.starts[i]) * group;
            for (int64_t row = 0; row < rows; row += at_once) {
                const int64_t count = std::min(at_once, rows - row);
                const int64_t first = a.starts[i] + row / group,
                              last = a.starts[i] + (row + count - 1) / group;
                const VisibleRange visible{visible_range(a, i, first).first,
                                           visible_range(a, i, last).end};
                spans.push_back({i, row, count, visible, row + count == rows ? a.shared[n] : 0});
            }
        }
    }

    // Groups spans of several sequences into tasks where they share keys, and where they are short:
    // alone, each would start with a cache miss.
    void join_spans(int64_t row_limit, int64_t threads) {
        for (const Span& span : spans) cost += cost_of(span);
        const int64_t fair = cost * a.kv_heads / (threads * kRounds);
        for (int64_t s = 0; s < static_cast<int64_t>(spans.size()); ++s) {
            const Span& span = spans[s];
            if (s > 0 && can_join(tasks.back(), span, row_limit, fair)) {
                Task& task = tasks.back();
                task.last_span = s;
                task.rows += span.rows;
                task.visible = {std::min(task.visible.first, span.visible.first),
                                std::max(task.visible.end, span.visible.end)};
                task.cost += cost_of(span);
                task.reads += span.visible.end - span.visible.first;
            } else {
                tasks.push_back({s, s, span.rows, span.visible, cost_of(span),
                                 span.visible.end - span.visible.first});
            }
            max_rows = std::max(max_rows, tasks.back().rows);
        }
    }

    bool can_join(const Task& task, const Span& span, int64_t row_limit, int64_t fair) const {
        const int64_t rows = task.rows + span.rows;
        if (rows > row_limit) return false;
        if (shares_prefix(spans[task.last_span], span)) return true;
        const int64_t reads = task.reads + span.visible.end - span.visible.first;
        return rows <= kRowsAtOnce && reads <= kSegment && task.cost + cost_of(span) <= fair;
    }

    static int64_t cost_of(const Span& span) {
        return span.rows * (span.visible.end - span.visible.first);
    }

    static bool shares_prefix(const Span& span, const Span& next) {  // at least a whole tile
        return span.shared >=
               std::max(span.visible.first, next.visible.first) / kPanel * kPanel + kPanel;
    }

    // Splits a task into segments where it would occupy one thread while the others are idle.
    void cut_tasks(int64_t threads) {
        const int64_t row_bytes = (value_size_of(a) + 2 * kLanes) * sizeof(float);
        for (int64_t t = 0; t < static_cast<int64_t>(tasks.size()); ++t) {
            const Task& task = tasks[t];
            const int64_t segments = task.segments(),
                          sums = (num_partial_sums + segments * a.kv_heads) * task.rows * row_bytes;
            const bool large = task.cost * threads * 2 > cost * a.kv_heads;
            if (threads == 1 || segments == 1 || !large || sums > kMaxPartialSumBytes) {
                units.push_back({t, -1, 0, 0});
                continue;
            }
            for (int64_t segment = 0; segment < segments; ++segment)
                units.push_back({t, task.first_segment() + segment, num_splits, num_partial_sums});
            ++num_splits;
            num_partial_sums += segments * a.kv_heads;
        }
    }
};

}  // namespace
