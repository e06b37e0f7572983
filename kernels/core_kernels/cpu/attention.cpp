// Attention over keys and values in blocks, read where they lie; compiled once per instruction set.
//
// A query sees its keys in pieces of 64, which begin at multiples of 64 of the sequence's positions, each folded into
// a running maximum, sum and weighted sum of values; every 1,024 positions these start anew, and the parts are merged
// in order. All of that depends on the query's own position and on nothing else: not on what is computed beside it, on
// how its prompt was cut into steps, on who else reads the same blocks, or on the threads.
#include "attention.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "../variant.h"
#include "blocks.h"
#include "parallel.h"
#include "pieces.h"
#include "softmax.h"
#include "tasks.h"
#include "tile_products.h"
#include "tiles.h"

namespace {

constexpr int64_t kParallelProducts = 1 << 16;

// Rows of a task: for each token of each span its query heads. Buffers of one thread.
template <typename T>
struct Rows {
    struct Row {
        int64_t token, head;
        Seen seen;
    };

    int64_t count = 0, across;  // across: numbers of a row, in whole panels of tiles
    Buffer<T> query;
    std::vector<Row> all;
    std::vector<int64_t> starts;  // first row of each span, and one more

    Rows(int64_t most, int64_t head_size)
        : across((head_size + kPanel - 1) / kPanel * kPanel), query(make_buffer<T>(most * across)) {
        all.reserve(most);
    }

    void read(const PagedAttention& a, const Work& work, const Task& task, int64_t kv_head) {
        const int64_t group = a.heads / a.kv_heads;
        all.clear(), starts.clear();
        for (int64_t s = task.first_span; s <= task.last_span; ++s) {
            const Span& span = work.spans[s];
            starts.push_back(static_cast<int64_t>(all.size()));
            for (int64_t r = span.first; r < span.first + span.rows; ++r) {
                const int64_t token = a.starts[span.sequence] + r / group, head = kv_head * group + r % group;
                const T* from = static_cast<const T*>(a.query) + token * a.query_token + head * a.query_head;
                std::memcpy(&query[static_cast<int64_t>(all.size()) * across], from, a.head_size * sizeof(T));
                all.push_back({token, head, seen_by(a, span.sequence, token)});
            }
        }
        starts.push_back(count = static_cast<int64_t>(all.size()));
    }
};

// One task of one head of keys, in the buffers of one thread.
template <typename T>
struct Attend {
    using U = Units<T>;
    static constexpr int64_t kEach = U::kNumbers;
    const PagedAttention& a;
    const Work& work;
    const Task& task;
    const int64_t kv_head;
    Rows<T>& rows;
    Reader<T>& reader;

    // Folds one piece into the sums of rows [first, first + R). `fetch`: nobody has read the piece yet.
    template <int R>
    void fold(const Piece<T>& piece, int64_t first, bool fetch, Sums& sums) const {
        Floats scores[R][kTiles] = {};
        constexpr int64_t chunk = kTiled<T> ? kChunk : 1;
        const int64_t units = (a.head_size + kEach - 1) / kEach;
        const T* query = &rows.query[first * rows.across];
        for (int t = 0; t + kAbreast <= kTiles; t += kAbreast) {
            if (t >= piece.tiles) break;
            Floats some[R][kAbreast] = {};
            const T* tiles[kAbreast];
            for (int c = 0; c < kAbreast; ++c) tiles[c] = piece.keys[t + c];
            int64_t begin = 0;
            for (int part = 0; part < kAbreast; ++part) {  // while keys are multiplied, values come nearer
                const int64_t end = part + 1 < kAbreast ? units * (part + 1) / kAbreast / chunk * chunk : units;
                const int64_t count = end - begin, bytes = kLanes * piece.across * static_cast<int64_t>(sizeof(T));
                Ahead ahead;
                if (fetch && t + part >= piece.first_tile && t + part < piece.tiles && count)
                    ahead = {reinterpret_cast<const char*>(piece.values[t + part]), bytes / count};
                const T* from[kAbreast];
                for (int c = 0; c < kAbreast; ++c) from[c] = tiles[c] + begin * kLanes * kEach;
                multiply<T, R, kAbreast>(some, query + begin * kEach, rows.across, from, kLanes * kEach, count, ahead);
                begin = end;
            }
            for (int r = 0; r < R; ++r)
                for (int c = 0; c < kAbreast; ++c) scores[r][t + c] = some[r][c];
        }
        T weights[R][kPanel];
        float fades[R];
        const int64_t end = weigh_rows(piece, first, R, scores, weights, fades, sums);
        int64_t column = 0;
        for (; kAbreast > 1 && column + kPanel <= piece.across; column += kPanel)
            add_values<R, kAbreast>(piece, end, column, weights[0], fades, first, fetch, sums);
        for (; column < piece.across; column += kLanes)
            add_values<R, 1>(piece, end, column, weights[0], fades, first, fetch, sums);
    }

    // Scores of rows [first, first + count) become weights. Returns the end of what these rows see: values behind it have
    // no weight.
    inline __attribute__((always_inline)) int64_t weigh_rows(const Piece<T>& piece, int64_t first, int64_t count,
                                                             Floats (*scores)[kTiles], T (*weights)[kPanel], float* fades,
                                                             Sums& sums) const {
        const bool plain = a.softcap == 0 && !a.alibi;
        int64_t end = piece.position;
        for (int64_t r = 0; r < count; ++r) {
            const auto& row = rows.all[first + r];
            end = std::max(end, std::min(row.seen.end, piece.end));
            float factor = a.scale * kLog2E;
            if (!plain || row.seen.first > piece.position || row.seen.end < piece.position + kPanel) {
                change_scores(a, a.alibi ? a.alibi[row.head] : 0, row.seen.first, row.seen.end, piece.position, scores[r]);
                factor = 1;
            }
            fades[r] = weigh(scores[r], factor, weights[r], &sums.most[first + r], &sums.totals[(first + r) * kLanes]);
            if constexpr (kTiled<T>) fade(&sums.values[(first + r) * sums.across], sums.across, fades[r]);
        }
        return end;
    }

    // A step of its own where sums go on in either kind of register: else the compiler could round product and sum at once.
    static __attribute__((noinline)) void fade(float* values, int64_t count, float by) {
        if (by == 1) return;
        for (int64_t i = 0; i < count; i += kLanes) ::store(values + i, ::load(values + i) * by);
    }

    template <int R, int C>
    __attribute__((noinline)) void add_values(const Piece<T>& piece, int64_t end, int64_t column, const T* weights,
                                              const float* fades, int64_t first, bool fetch, Sums& into) const {
        Floats sums[R][C];
        for (int r = 0; r < R; ++r)
            for (int c = 0; c < C; ++c) {
                sums[r][c] = load(&into.values[(first + r) * into.across + column + c * kLanes]);
                if constexpr (!kTiled<T>) sums[r][c] *= fades[r];
            }
        for (int t = piece.first_tile; piece.position + t * kLanes < end; ++t) {
            const T* tiles[C];
            for (int c = 0; c < C; ++c) tiles[c] = piece.values[t] + (column + c * kLanes) * kEach;
            const int64_t left = end - piece.position - t * kLanes, keys = kTiled<T> || left > kLanes ? kLanes : left;
            const int64_t whole = keys / kEach, step = piece.across * kEach;
            Ahead ahead;
            if (fetch && piece.next[t])
                ahead = {reinterpret_cast<const char*>(piece.next[t] + column * kLanes), C * kLanes * unit_bytes<T>()};
            multiply<T, R, C>(sums, weights + t * kLanes, kPanel, tiles, step, whole, ahead);
            if (whole * kEach < keys)  // what lies beside the last key is no key of this sequence
                for (int c = 0; c < C; ++c) {
                    const auto only = U::first_only(U::column_of(tiles[c] + whole * step));
                    for (int r = 0; r < R; ++r)
                        sums[r][c] = U::add_product(
                            sums[r][c], U::spread_of(weights + r * kPanel + t * kLanes + whole * kEach), only);
                }
        }
        for (int r = 0; r < R; ++r)
            for (int c = 0; c < C; ++c) store(&into.values[(first + r) * into.across + column + c * kLanes], sums[r][c]);
    }

#if defined(TILE_REGISTERS)
    // Folds one piece into the sums of up to sixteen rows from `first` on.
    void fold_tiled(const Piece<T>& piece, int64_t first, int64_t count, bool fetch, Sums& sums) const {
        Floats scores[kTileRows][kTiles];
        T weights[kTileRows][kPanel];
        float fades[kTileRows];
        const int64_t units = (a.head_size + kEach - 1) / kEach, bytes = kLanes * piece.across * 2;
        multiply_in_tiles<1, kTiles>(reinterpret_cast<float*>(scores), sizeof scores[0], count,
                                     &rows.query[first * rows.across], rows.across, piece.keys, kLanes * kEach, units,
                                     [&](int64_t unit, int64_t end) {
                                         if (!fetch) return;
                                         for (int t = piece.first_tile; t < piece.tiles; ++t)
                                             fetch_part(piece.values[t], bytes, unit, end, units);
                                     });
        const int64_t end = weigh_rows(piece, first, count, scores, weights, fades, sums);
        int64_t column = 0;
        for (; column + kPanel <= piece.across; column += kPanel)
            add_tiled_values<kTiles>(piece, end, column, weights[0], first, count, fetch, sums);
        for (; column < piece.across; column += kLanes)
            add_tiled_values<1>(piece, end, column, weights[0], first, count, fetch, sums);
    }

    template <int C>
    void add_tiled_values(const Piece<T>& piece, int64_t end, int64_t column, const T* weights, int64_t first, int64_t count,
                          bool fetch, Sums& into) const {
        const TileBlock<1, C> block(count, kLanes / kEach);
        float* sums = &into.values[first * into.across + column];
        const int64_t stride = into.across * static_cast<int64_t>(sizeof(float));
        block.load(sums, stride);
        for (int t = piece.first_tile; piece.position + t * kLanes < end; ++t) {
            const char* tiles[C];
            for (int c = 0; c < C; ++c)
                tiles[c] = reinterpret_cast<const char*>(piece.values[t] + (column + c * kLanes) * kEach);
            if (fetch && piece.next[t])
                fetch_part(piece.next[t], kLanes * piece.across * 2, column, column + C * kLanes, piece.across);
            block.add(weights + t * kLanes, kPanel * 2, tiles, piece.across * 4);
        }
        block.store(sums, stride);
    }

    // Lines of the part [from, to) of `all` that lie where `bytes` begin.
    static void fetch_part(const T* begin, int64_t bytes, int64_t from, int64_t to, int64_t all) {
        for (int64_t at = bytes * from / all; at < bytes * to / all; at += 64)
            __builtin_prefetch(reinterpret_cast<const char*>(begin) + at, 0, 2);
    }
#endif

    // Folds the piece at `at` into rows [first, last), in blocks of as equal size as can be.
    void fold_rows(const Piece<T>& piece, int64_t first, int64_t last, Sums& sums) const {
        const bool tiled = kTiled<T> && last - first >= kTiledRows;
        const int64_t most = tiled ? kTileRows : kRowsOf<T>, blocks = (last - first + most - 1) / most;
        for (int64_t b = 0; b < blocks; ++b) {
            const int64_t from = first + (last - first) * b / blocks, until = first + (last - first) * (b + 1) / blocks;
            const bool fetch = b == 0 && piece.in_place;
#if defined(TILE_REGISTERS)
            if constexpr (kTiled<T>)
                if (tiled) {
                    fold_tiled(piece, from, until - from, fetch, sums);
                    continue;
                }
#endif
            with_rows<kRowsOf<T>>(until - from, [&](auto count) { fold<decltype(count)::value>(piece, from, fetch, sums); });
        }
    }

    // Rows of a span that see something of the piece at `at`: neighbours, since later tokens see later keys.
    Seen rows_that_see(int64_t span, int64_t at) const {
        int64_t first = rows.starts[span - task.first_span], last = rows.starts[span - task.first_span + 1];
        while (first < last && rows.all[first].seen.end <= at) ++first;
        while (first < last && rows.all[last - 1].seen.first >= at + kPanel) --last;
        return {first, last};
    }

    // Where a span goes on: what is fetched while the piece before it is computed.
    struct Place {
        int64_t span, at;  // span -1: nowhere
    };

    // Folds the piece at `at` into what sees it of spans [first, last], which all find it in the same place.
    void fold_piece(int64_t first, int64_t last, int64_t at, int64_t end, Place next, Sums& sums) const {
        const Span* reading = nullptr;
        Seen seen{at + kPanel, at};
        for (int64_t s = first; s <= last; ++s) {
            const Span& span = work.spans[s];
            if (span.seen.first >= at + kPanel || span.seen.end <= at) continue;
            reading = &span;
            seen = {std::min(seen.first, span.seen.first), std::max(seen.end, span.seen.end)};
        }
        if (!reading) return;
        const int32_t* table = a.tables + reading->sequence * a.table_stride;
        Piece<T> piece = reader.piece(a, table, kv_head, at, seen.first, std::min(seen.end, end));
        if (next.span >= 0) {
            const Span& span = work.spans[next.span];
            reader.announce(a, a.tables + span.sequence * a.table_stride, kv_head,
                            std::max(next.at, span.seen.first / kPanel * kPanel), span.seen, piece);
        }
        Seen some{0, 0};
        for (int64_t s = first; s <= last; ++s) {
            const Seen more = rows_that_see(s, at);
            if (more.first == more.end) continue;
            if (more.first != some.end) {
                fold_rows(piece, some.first, some.end, sums);
                some.first = more.first;
            }
            some.end = more.end;
        }
        fold_rows(piece, some.first, some.end, sums);
    }

    // Positions [at, end) of spans [first, last], which share what lies before `at`: piece by piece as long as they share
    // it, then the parts of them that still do, one after the other. `next`: what comes behind them.
    void fold_shared(int64_t first, int64_t last, int64_t at, int64_t end, Place next, Sums& sums) const {
        Seen seen = work.spans[first].seen;
        int64_t shared = end;
        for (int64_t s = first; s < last; ++s) {
            const Seen more = work.spans[s + 1].seen;
            seen = {std::min(seen.first, more.first), std::max(seen.end, more.end)};
            shared = std::min(shared, work.spans[s].shared);
        }
        at = std::max(at, seen.first / kPanel * kPanel);
        end = std::min(end, seen.end);
        for (; at < end && (first == last || at + kPanel <= shared); at += kPanel)
            fold_piece(first, last, at, end, at + kPanel < end ? Place{first, at + kPanel} : next, sums);
        if (at >= end) return;
        for (int64_t from = first, s = first; s <= last; ++s)
            if (s == last || work.spans[s].shared < at + kPanel) {
                fold_shared(from, s, at, end, s < last ? Place{s + 1, at} : next, sums);
                from = s + 1;
            }
    }

    void fold_segment(int64_t number, Sums& sums) const {
        sums.clear(rows.count);
        const int64_t begin = number * kSegment, end = begin + kSegment;
        const Place next = end < task.seen.end ? Place{task.first_span, end} : Place{-1, 0};
        fold_shared(task.first_span, task.last_span, begin, end, next, sums);
    }

    void finish(const Sums& sums) const {
        const int64_t size = value_size_of(a);
        for (int64_t r = 0; r < rows.count; ++r) {
            const auto& row = rows.all[r];
            float total = sum(load(&sums.totals[r * kLanes])), kept = 1.0f;
            if (a.sinks) {
                const float sink = a.sinks[row.head] * kLog2E, most = sink > sums.most[r] ? sink : sums.most[r];
                kept = power_of_two(sums.most[r] - most);
                total = total * kept + power_of_two(sink - most);
            }
            const float share = total > 0 ? kept / total : total == total ? 0.0f : total;
            T* to = static_cast<T*>(a.out) + (row.token * a.heads + row.head) * size;
            const float* values = &sums.values[r * sums.across];
            int64_t i = 0;
            for (; i + kLanes <= size; i += kLanes) store(to + i, load(values + i) * share);
            if (const int64_t rest = size - i) store(to + i, load(values + i) * share, rest);
        }
    }
};

// Sums of segments that are units of their own, until all of a task's are there.
struct Kept {
    std::vector<Sums> sums;
    std::unique_ptr<std::atomic<int64_t>[]> left;  // per split task and head of keys

    Kept(const Work& work, int64_t kv_heads)
        : sums(work.kept), left(new std::atomic<int64_t>[work.splits * kv_heads]) {
        for (const Unit& unit : work.units)
            if (unit.segment >= 0)
                for (int64_t head = 0; head < kv_heads; ++head)
                    left[unit.split * kv_heads + head] = work.tasks[unit.task].segments();
    }
};

template <typename T>
void run(const PagedAttention& a, const Work& work, const Unit& unit, int64_t kv_head, Rows<T>& rows, Reader<T>& reader,
         Sums& whole, Sums& part, Kept& kept) {
    const Task& task = work.tasks[unit.task];
    const Attend<T> attend{a, work, task, kv_head, rows, reader};
    const int64_t first = task.first_segment(), count = task.segments();
    rows.read(a, work, task, kv_head);
    if (unit.segment >= 0) {
        Sums* sums = &kept.sums[unit.place + kv_head * count];
        Sums& own = sums[unit.segment - first];
        own = Sums(rows.count, value_size_of(a));
        attend.fold_segment(unit.segment, own);
        if (kept.left[unit.split * a.kv_heads + kv_head].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
        for (int64_t i = 1; i < count; ++i) sums[0].merge(sums[i], rows.count);
        return attend.finish(sums[0]);
    }
    attend.fold_segment(first, whole);
    for (int64_t i = 1; i < count; ++i) {
        attend.fold_segment(first + i, part);
        whole.merge(part, rows.count);
    }
    attend.finish(whole);
}

template <typename T>
void attend(const PagedAttention& a) {
    const bool pays = a.num_slots * a.kv_heads * a.head_size >= kParallelProducts;
    share_out(a.kv_heads, pays, [&](Pieces& pieces) {
        for (int64_t head; pieces.next(&head);) write_head<T>(a, head);
    });
    const Work work(a, max_workers());
    Kept kept(work, a.kv_heads);
    const int64_t count = static_cast<int64_t>(work.units.size()) * a.kv_heads;
    share_out(count, work.cost * a.kv_heads * a.head_size >= kParallelProducts, [&](Pieces& pieces) {
        const Flushed flushed;
        Reader<T> reader(a);
        Rows<T> rows(work.most_rows, a.head_size);
        Sums whole(work.most_rows, value_size_of(a)), part(work.most_rows, value_size_of(a));
        for (int64_t i; pieces.next(&i);)
            run(a, work, work.units[i / a.kv_heads], i % a.kv_heads, rows, reader, whole, part, kept);
    });
}

void any_attend(const PagedAttention& a) {
    auto run = a.dtype == kFloat32 ? attend<float> : a.dtype == kBFloat16 ? attend<BFloat16> : attend<Float16>;
    run(a);
}

}  // namespace

extern const AttentionOps TABLE(attention_);
const AttentionOps TABLE(attention_) = {any_attend};
