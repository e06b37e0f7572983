// Paged attention over the KV blocks; compiled once per instruction set.
//
// A query reads its keys in KV tiles of 64 positions, aligned to multiples of 64. Each tile updates
// a running maximum, weight sum and weighted value sum (online softmax). Every 1,024 positions a
// new segment starts, and the segments are merged in order. All of this depends on the query's
// position only: results are bitwise invariant to the batch, the prefill chunks, the shared
// prefixes and the number of threads.
#define PAIRED_VECTORS
#include "cpu/attention/attention.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "cpu/variant.h"
#include "cpu/attention/cache_write.h"
#include "cpu/threading/parallel.h"
#include "cpu/attention/kv_tile.h"
#include "cpu/attention/products.h"
#include "cpu/attention/softmax.h"
#include "cpu/attention/work_split.h"
#include "cpu/gemm/tile_products.h"
#include "cpu/gemm/tiles.h"

namespace {

constexpr int64_t kParallelProducts = 1 << 16;

// Query rows of a task: the query heads of each token of each span. Buffers of one thread.
template <typename T>
struct QueryRows {
    struct Row {
        int64_t token, head;
        VisibleRange visible;
    };

    int64_t count = 0, padded_width;  // width of a row, padded to whole panels
    Buffer<Factor<T>> query;
    std::vector<Row> all;
    std::vector<int64_t> starts;  // first row of each span, plus the end

    QueryRows(int64_t max_rows, int64_t head_size)
        : padded_width((head_size + kPanel - 1) / kPanel * kPanel),
          query(make_buffer<Factor<T>>(max_rows * padded_width)) {
        all.reserve(max_rows);
    }

    void read(const PagedAttention& a, const WorkSplit& work, const Task& task, int64_t kv_head) {
        const int64_t group = a.heads / a.kv_heads;
        all.clear(), starts.clear();
        for (int64_t s = task.first_span; s <= task.last_span; ++s) {
            const Span& span = work.spans[s];
            starts.push_back(static_cast<int64_t>(all.size()));
            for (int64_t r = span.first; r < span.first + span.rows; ++r) {
                const int64_t token = a.starts[span.sequence] + r / group,
                              head = kv_head * group + r % group;
                const T* from =
                    static_cast<const T*>(a.query) + token * a.query_token + head * a.query_head;
                copy_factors(&query[static_cast<int64_t>(all.size()) * padded_width], from,
                             a.head_size);
                all.push_back({token, head, visible_range(a, span.sequence, token)});
            }
        }
        starts.push_back(count = static_cast<int64_t>(all.size()));
    }
};

// One task of one KV head, in the buffers of one thread.
template <typename T>
struct TaskAttention {
    using U = Units<T>;
    static constexpr int64_t kEach = U::kNumbers;
    const PagedAttention& a;
    const WorkSplit& work;
    const Task& task;
    const int64_t kv_head;
    QueryRows<T>& rows;
    TileReader<T>& reader;

    // Accumulates one KV tile into rows [first, first + R). `fetch`: the tile is not in the cache
    // yet.
    template <int R>
    void accumulate(const KVTile<T>& kv, int64_t first, bool fetch, Sums& sums) const {
        Floats scores[R][kTiles] = {};
        constexpr int64_t chunk = kTiled<T> ? kChunk : 1;
        const int64_t units = (a.head_size + kEach - 1) / kEach;
        constexpr int C = columns_of(R);
        const Factor<T>* query = &rows.query[first * rows.padded_width];
        for (int t = 0; t + C <= kTiles; t += C) {
            if (t >= kv.tiles) break;
            Floats some[R][C] = {};
            const T* tiles[C];
            for (int c = 0; c < C; ++c) tiles[c] = kv.keys[t + c];
            int64_t begin = 0;
            for (int part = 0; part < C; ++part) {  // prefetch values while keys are multiplied
                const int64_t end = part + 1 < C ? units * (part + 1) / C / chunk * chunk : units;
                const int64_t count = end - begin,
                              bytes = kLanes * kv.padded_width * static_cast<int64_t>(sizeof(T));
                Prefetch ahead;
                if (fetch && t + part >= kv.first_tile && t + part < kv.tiles && count)
                    ahead = {reinterpret_cast<const char*>(kv.values[t + part]), bytes / count};
                const T* from[C];
                for (int c = 0; c < C; ++c) from[c] = tiles[c] + begin * kLanes * kEach;
                multiply_tiles<T, R, C>(some, query + begin * kEach, rows.padded_width, from,
                                        kLanes * kEach, count, ahead);
                begin = end;
            }
            for (int r = 0; r < R; ++r)
                for (int c = 0; c < C; ++c) scores[r][t + c] = some[r][c];
        }
        Factor<T> weights[R][kPanel];
        float rescale[R];
        const int64_t end = weigh_rows(kv, first, R, scores, weights, rescale, sums);
        int64_t column = 0;
        for (; C > 1 && column + C * kLanes <= kv.padded_width; column += C * kLanes)
            add_values<R, C>(kv, end, column, weights[0], rescale, first, fetch, sums);
        for (; column < kv.padded_width; column += kLanes)
            add_values<R, 1>(kv, end, column, weights[0], rescale, first, fetch, sums);
    }

    // Turns the scores of rows [first, first + count) into softmax weights. Returns the end of the
    // positions that these rows see: later values have weight zero.
    inline __attribute__((always_inline)) int64_t weigh_rows(const KVTile<T>& kv, int64_t first,
                                                             int64_t count,
                                                             Floats (*scores)[kTiles],
                                                             Factor<T> (*weights)[kPanel],
                                                             float* rescale, Sums& sums) const {
        const bool plain = a.softcap == 0 && !a.alibi;
        int64_t end = kv.position;
        for (int64_t r = 0; r < count; ++r) {
            const auto& row = rows.all[first + r];
            end = std::max(end, std::min(row.visible.end, kv.end));
            float factor = a.scale * kLog2E;
            if (!plain || row.visible.first > kv.position ||
                row.visible.end < kv.position + kPanel) {
                mask_scores(a, a.alibi ? a.alibi[row.head] : 0, row.visible.first, row.visible.end,
                            kv.position, scores[r]);
                factor = 1;
            }
            rescale[r] = softmax_weights(scores[r], factor, weights[r], &sums.max_score[first + r],
                                         &sums.weight_sums[(first + r) * kLanes]);
            if constexpr (kTiled<T>)
                rescale_row(&sums.values[(first + r) * sums.padded_width], sums.padded_width,
                            rescale[r]);
        }
        return end;
    }

    // A function of its own, because sums continue in either kind of register. Inlined, the
    // compiler could fuse this product with the next sum.
    static __attribute__((noinline)) void rescale_row(float* values, int64_t count, float by) {
        if (by == 1) return;
        for (int64_t i = 0; i < count; i += kLanes) ::store(values + i, ::load(values + i) * by);
    }

    template <int R, int C>
    __attribute__((noinline)) void add_values(const KVTile<T>& kv, int64_t end, int64_t column,
                                              const Factor<T>* weights, const float* rescale,
                                              int64_t first, bool fetch, Sums& into) const {
        Floats sums[R][C];
// Unrolled early: an array that is indexed by a variable stays in memory.
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                sums[r][c] =
                    load(&into.values[(first + r) * into.padded_width + column + c * kLanes]);
                if constexpr (!kTiled<T>) sums[r][c] *= rescale[r];
            }
        for (int t = kv.first_tile; kv.position + t * kLanes < end; ++t) {
            const T* tiles[C];
            for (int c = 0; c < C; ++c) tiles[c] = kv.values[t] + (column + c * kLanes) * kEach;
            const int64_t left = end - kv.position - t * kLanes,
                          keys = kTiled<T> || left > kLanes ? kLanes : left;
            const int64_t whole = keys / kEach, step = kv.padded_width * kEach;
            Prefetch ahead;
            if (fetch && kv.next_keys[t])
                ahead = {reinterpret_cast<const char*>(kv.next_keys[t] + column * kLanes),
                         C * kLanes * unit_bytes<T>()};
            multiply_tiles<T, R, C>(sums, weights + t * kLanes, kPanel, tiles, step, whole, ahead);
            if (whole * kEach < keys) {  // the second value belongs to no key of this sequence
                T first_only[C * kLanes * kEach];
                copy_first(first_only, tiles, whole * step);
                for (int c = 0; c < C; ++c) tiles[c] = first_only + c * kLanes * kEach;
                multiply_tiles<T, R, C>(sums, weights + t * kLanes + whole * kEach, kPanel, tiles,
                                        0, 1, Prefetch());
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c)
                store(&into.values[(first + r) * into.padded_width + column + c * kLanes],
                      sums[r][c]);
    }

#if defined(TILE_REGISTERS)
    // Accumulates one KV tile into up to sixteen rows from `first`.
    void accumulate_tiled(const KVTile<T>& kv, int64_t first, int64_t count, bool fetch,
                          Sums& sums) const {
        Floats scores[kTileRows][kTiles];
        T weights[kTileRows][kPanel];
        float rescale[kTileRows];
        const int64_t units = (a.head_size + kEach - 1) / kEach,
                      bytes = kLanes * kv.padded_width * 2;
        multiply_in_tiles<1, kTiles>(reinterpret_cast<float*>(scores), sizeof scores[0], count,
                                     &rows.query[first * rows.padded_width], rows.padded_width,
                                     kv.keys, kLanes * kEach, units,
                                     [&](int64_t unit, int64_t end) {
                                         if (!fetch) return;
                                         for (int t = kv.first_tile; t < kv.tiles; ++t)
                                             fetch_part(kv.values[t], bytes, unit, end, units);
                                     });
        const int64_t end = weigh_rows(kv, first, count, scores, weights, rescale, sums);
        int64_t column = 0;
        for (; column + kPanel <= kv.padded_width; column += kPanel)
            add_tiled_values<kTiles>(kv, end, column, weights[0], first, count, fetch, sums);
        for (; column < kv.padded_width; column += kLanes)
            add_tiled_values<1>(kv, end, column, weights[0], first, count, fetch, sums);
    }

    template <int C>
    void add_tiled_values(const KVTile<T>& kv, int64_t end, int64_t column, const T* weights,
                          int64_t first, int64_t count, bool fetch, Sums& into) const {
        const TileBlock<1, C> block(count, kLanes / kEach);
        float* sums = &into.values[first * into.padded_width + column];
        const int64_t stride = into.padded_width * static_cast<int64_t>(sizeof(float));
        block.load(sums, stride);
        for (int t = kv.first_tile; kv.position + t * kLanes < end; ++t) {
            const char* tiles[C];
            for (int c = 0; c < C; ++c)
                tiles[c] =
                    reinterpret_cast<const char*>(kv.values[t] + (column + c * kLanes) * kEach);
            if (fetch && kv.next_keys[t])
                fetch_part(kv.next_keys[t], kLanes * kv.padded_width * 2, column,
                           column + C * kLanes, kv.padded_width);
            block.add(weights + t * kLanes, kPanel * 2, tiles, kv.padded_width * 4);
        }
        block.store(sums, stride);
    }

    // Prefetches the share [from, to) of `all` of the `bytes` at `begin`.
    static void fetch_part(const T* begin, int64_t bytes, int64_t from, int64_t to, int64_t all) {
        for (int64_t at = bytes * from / all; at < bytes * to / all; at += 64)
            __builtin_prefetch(reinterpret_cast<const char*>(begin) + at, 0, 2);
    }
#endif

    // Accumulates the tile at `at` into rows [first, last), in blocks of nearly equal size.
    void accumulate_rows(const KVTile<T>& kv, int64_t first, int64_t last, Sums& sums) const {
        const bool tiled = kTiled<T> && last - first >= kTiledRows;
        const int64_t max_rows = tiled ? kTileRows : kBlockRows<T>;
        const int64_t blocks = (last - first + max_rows - 1) / max_rows;
        for (int64_t b = 0; b < blocks; ++b) {
            const int64_t from = first + (last - first) * b / blocks,
                          until = first + (last - first) * (b + 1) / blocks;
            const bool fetch = b == 0 && kv.is_zero_copy;
#if defined(TILE_REGISTERS)
            if constexpr (kTiled<T>)
                if (tiled) {
                    accumulate_tiled(kv, from, until - from, fetch, sums);
                    continue;
                }
#endif
            with_rows<kBlockRows<T>>(until - from, [&](auto count) {
                accumulate<decltype(count)::value>(kv, from, fetch, sums);
            });
        }
    }

    // Rows of a span that see part of the tile at `at`. They are contiguous, since later tokens see
    // later keys.
    VisibleRange visible_rows(int64_t span, int64_t at) const {
        int64_t first = rows.starts[span - task.first_span],
                last = rows.starts[span - task.first_span + 1];
        while (first < last && rows.all[first].visible.end <= at) ++first;
        while (first < last && rows.all[last - 1].visible.first >= at + kPanel) --last;
        return {first, last};
    }

    // The next tile of a span, prefetched while the current tile is computed.
    struct NextTile {
        int64_t span, at;  // span -1: none
    };

    // Accumulates the tile at `at` into all spans of [first, last] that see it; it is the same KV
    // block for all.
    void accumulate_tile(int64_t first, int64_t last, int64_t at, int64_t end, NextTile next,
                         Sums& sums) const {
        const Span* reading = nullptr;
        VisibleRange seen{at + kPanel, at};
        for (int64_t s = first; s <= last; ++s) {
            const Span& span = work.spans[s];
            if (span.visible.first >= at + kPanel || span.visible.end <= at) continue;
            reading = &span;
            seen = {std::min(seen.first, span.visible.first), std::max(seen.end, span.visible.end)};
        }
        if (!reading) return;
        const int32_t* table = a.tables + reading->sequence * a.table_stride;
        KVTile<T> kv = reader.read(a, table, kv_head, at, seen.first, std::min(seen.end, end));
        if (next.span >= 0) {
            const Span& span = work.spans[next.span];
            reader.set_next(a, a.tables + span.sequence * a.table_stride, kv_head,
                            std::max(next.at, span.visible.first / kPanel * kPanel), span.visible,
                            kv);
        }
        VisibleRange some{0, 0};
        for (int64_t s = first; s <= last; ++s) {
            const VisibleRange more = visible_rows(s, at);
            if (more.first == more.end) continue;
            if (more.first != some.end) {
                accumulate_rows(kv, some.first, some.end, sums);
                some.first = more.first;
            }
            some.end = more.end;
        }
        accumulate_rows(kv, some.first, some.end, sums);
    }

    // Accumulates positions [at, end) into spans [first, last], which share all blocks before `at`.
    // Goes tile by tile while all spans share the tile, then recurses into the groups that still
    // share. `next`: the tile after these.
    void accumulate_shared(int64_t first, int64_t last, int64_t at, int64_t end, NextTile next,
                           Sums& sums) const {
        VisibleRange seen = work.spans[first].visible;
        int64_t shared = end;
        for (int64_t s = first; s < last; ++s) {
            const VisibleRange more = work.spans[s + 1].visible;
            seen = {std::min(seen.first, more.first), std::max(seen.end, more.end)};
            shared = std::min(shared, work.spans[s].shared);
        }
        at = std::max(at, seen.first / kPanel * kPanel);
        end = std::min(end, seen.end);
        for (; at < end && (first == last || at + kPanel <= shared); at += kPanel)
            accumulate_tile(first, last, at, end,
                            at + kPanel < end ? NextTile{first, at + kPanel} : next, sums);
        if (at >= end) return;
        for (int64_t from = first, s = first; s <= last; ++s)
            if (s == last || work.spans[s].shared < at + kPanel) {
                accumulate_shared(from, s, at, end, s < last ? NextTile{s + 1, at} : next, sums);
                from = s + 1;
            }
    }

    void accumulate_segment(int64_t number, Sums& sums) const {
        sums.clear(rows.count);
        const int64_t begin = number * kSegment, end = begin + kSegment;
        const NextTile next =
            end < task.visible.end ? NextTile{task.first_span, end} : NextTile{-1, 0};
        accumulate_shared(task.first_span, task.last_span, begin, end, next, sums);
    }

    void finish(const Sums& sums) const {
        const int64_t size = value_size_of(a);
        for (int64_t r = 0; r < rows.count; ++r) {
            const auto& row = rows.all[r];
            float total = sum(load(&sums.weight_sums[r * kLanes])), scale = 1.0f;
            if (a.sinks) {
                const float sink = a.sinks[row.head] * kLog2E,
                            max_score = sink > sums.max_score[r] ? sink : sums.max_score[r];
                scale = power_of_two(sums.max_score[r] - max_score);
                total = total * scale + power_of_two(sink - max_score);
            }
            const float share = total > 0 ? scale / total : total == total ? 0.0f : total;
            T* to = static_cast<T*>(a.out) + (row.token * a.heads + row.head) * size;
            const float* values = &sums.values[r * sums.padded_width];
            int64_t i = 0;
            for (; i + kLanes <= size; i += kLanes) store(to + i, load(values + i) * share);
            if (const int64_t rest = size - i) store(to + i, load(values + i) * share, rest);
        }
    }
};

// Partial sums of segments that are work units of their own, until all segments of a task are done.
struct PartialSums {
    std::vector<Sums> sums;
    std::unique_ptr<std::atomic<int64_t>[]> left;  // open segments per split task and KV head

    PartialSums(const WorkSplit& work, int64_t kv_heads)
        : sums(work.num_partial_sums), left(new std::atomic<int64_t>[work.num_splits * kv_heads]) {
        for (const WorkUnit& unit : work.units)
            if (unit.segment >= 0)
                for (int64_t head = 0; head < kv_heads; ++head)
                    left[unit.split * kv_heads + head] = work.tasks[unit.task].segments();
    }
};

template <typename T>
void run(const PagedAttention& a, const WorkSplit& work, const WorkUnit& unit, int64_t kv_head,
         QueryRows<T>& rows, TileReader<T>& reader, Sums& whole, Sums& part, PartialSums& partial) {
    const Task& task = work.tasks[unit.task];
    const TaskAttention<T> attend{a, work, task, kv_head, rows, reader};
    const int64_t first = task.first_segment(), count = task.segments();
    rows.read(a, work, task, kv_head);
    if (unit.segment >= 0) {
        Sums* sums = &partial.sums[unit.first_sum + kv_head * count];
        Sums& own = sums[unit.segment - first];
        own = Sums(rows.count, value_size_of(a));
        attend.accumulate_segment(unit.segment, own);
        if (partial.left[unit.split * a.kv_heads + kv_head].fetch_sub(
                1, std::memory_order_acq_rel) > 1)
            return;
        for (int64_t i = 1; i < count; ++i) sums[0].merge(sums[i], rows.count);
        return attend.finish(sums[0]);
    }
    attend.accumulate_segment(first, whole);
    for (int64_t i = 1; i < count; ++i) {
        attend.accumulate_segment(first + i, part);
        whole.merge(part, rows.count);
    }
    attend.finish(whole);
}

template <typename T>
void attend(const PagedAttention& a) {
    const bool pays = a.num_slots * a.kv_heads * a.head_size >= kParallelProducts;
    run_workers(a.kv_heads, pays, [&](WorkItems& items) {
        for (int64_t head; items.next(&head);) write_head<T>(a, head);
    });
    const WorkSplit work(a, max_workers());
    PartialSums partial(work, a.kv_heads);
    const int64_t count = static_cast<int64_t>(work.units.size()) * a.kv_heads;
    run_workers(
        count, work.cost * a.kv_heads * a.head_size >= kParallelProducts, [&](WorkItems& items) {
            const FlushDenormals flushed;
            TileReader<T> reader(a);
            QueryRows<T> rows(work.max_rows, a.head_size);
            Sums whole(work.max_rows, value_size_of(a)), part(work.max_rows, value_size_of(a));
            for (int64_t i; items.next(&i);)
                run(a, work, work.units[i / a.kv_heads], i % a.kv_heads, rows, reader, whole, part,
                    partial);
        });
}

void any_attend(const PagedAttention& a) {
    auto run = a.dtype == kFloat32    ? attend<float>
               : a.dtype == kBFloat16 ? attend<BFloat16>
                                      : attend<Float16>;
    run(a);
}

}  // namespace

extern const AttentionOps TABLE(attention_);
const AttentionOps TABLE(attention_) = {any_attend};
