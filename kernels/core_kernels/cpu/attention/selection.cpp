// Selection of the tokens that a query attends to; compiled once per instruction set.
//
// Index keys are read in panels of 64 and transposed to tiles. A score is summed over the heads in
// order, so it depends on its query and its key only.
#define PAIRED_VECTORS
#include "cpu/attention/selection.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "cpu/attention/products.h"
#include "cpu/attention/transpose.h"
#include "cpu/buffer.h"
#include "cpu/threading/parallel.h"
#include "cpu/variant.h"

namespace {

constexpr int64_t kQueriesAtOnce = 32;  // they stay in a core's cache
constexpr int64_t kParallelProducts = 1 << 16;
constexpr int64_t kParallelWords = 1 << 14;

// Heads of a block of products, and its column tiles: as many as leave registers for the columns.
#if defined(__AVX2__)
constexpr int kHeads = 4;
#else
constexpr int kHeads = 2;
#endif
constexpr int kColumns = columns_of(kHeads);

int64_t padded(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

// Unsigned integers in the order of the floats. Both zeros are equal; NaN is the lowest.
inline Words in_order(Floats scores) {
    const Words bits = (Words)(scores + 0.0f);
    const Words flipped = bits ^ ((Words)((Ints)bits >> 31) | 0x80000000);
    return select(scores == scores, flipped, Words{});
}

template <typename T>
class Scorer {
public:
    // The queries [first, first + queries).
    Scorer(const TokenSelection& a, int64_t first, int64_t queries)
        : a_(a),
          first_(first),
          queries_(queries),
          heads_(padded(a.heads, kHeads)),
          width_(padded(a.size, kLanes)),
          rows_(make_buffer<Factor<T>>(queries * heads_ * width_)) {
        const T* from = static_cast<const T*>(a.query) + first * a.heads * a.size;
        for (int64_t q = 0; q < queries; ++q)
            for (int64_t h = 0; h < a.heads; ++h)
                copy_factors(&rows_[(q * heads_ + h) * width_],
                             from + (q * a.heads + h) * a.size, a.size);
    }

    // Writes the scores of the panel at `position` to scores [queries, stride].
    void score(int64_t position, int64_t longest, T* tiles, uint32_t* scores,
               int64_t stride) const {
        read(position, longest, tiles);
        for (int64_t q = 0; q < queries_; ++q)
            if (a_.seen[first_ + q] > position) score_query(q, tiles, scores + q * stride);
    }

    int64_t tiles_size() const { return kPanel * width_; }

private:
    // Keys after the last one are those of the last one: their scores are not read.
    void read(int64_t position, int64_t longest, T* tiles) const {
        for (int t = 0; t < kTiles; ++t) {
            const T* rows[kLanes];
            for (int k = 0; k < kLanes; ++k)
                rows[k] = key(std::min(position + t * kLanes + k, longest - 1));
            make_tile(tiles + t * kLanes * width_, rows, a_.size);
        }
        for (int64_t k = 0; k < kPanel; ++k) {  // of the next panel
            if (position + kPanel + k >= longest) break;
            const char* next = reinterpret_cast<const char*>(key(position + kPanel + k));
            for (int64_t at = 0; at < a_.size * int64_t(sizeof(T)); at += 64)
                __builtin_prefetch(next + at, 0, 2);
        }
    }

    const T* key(int64_t position) const {
        return static_cast<const T*>(a_.keys) +
               a_.table[position / a_.block_size] * a_.block_stride +
               position % a_.block_size * a_.row_stride;
    }

    void score_query(int64_t query, const T* tiles, uint32_t* scores) const {
        constexpr int64_t each = Units<T>::kNumbers;
        const float* weights = a_.weights + (first_ + query) * a_.heads;
        for (int t = 0; t < kTiles; t += kColumns) {
            const T* columns[kColumns];
            for (int c = 0; c < kColumns; ++c) columns[c] = tiles + (t + c) * kLanes * width_;
            Floats totals[kColumns] = {};
            for (int64_t head = 0; head < a_.heads; head += kHeads) {
                Floats sums[kHeads][kColumns] = {};
                multiply_tiles<T, kHeads, kColumns>(
                    sums, &rows_[(query * heads_ + head) * width_], width_, columns, kLanes * each,
                    a_.size / each, Prefetch());
#pragma GCC unroll 4
                for (int r = 0; r < kHeads; ++r) {
                    if (head + r >= a_.heads) break;
#pragma GCC unroll 4
                    for (int c = 0; c < kColumns; ++c)
                        totals[c] += select(sums[r][c] < 0.0f, Floats{}, sums[r][c]) *
                                     weights[head + r];
                }
            }
            for (int c = 0; c < kColumns; ++c)
                store_vector(scores + (t + c) * kLanes, in_order(totals[c]));
        }
    }

    const TokenSelection& a_;
    const int64_t first_, queries_, heads_, width_;
    const Buffer<Factor<T>> rows_;
};

// Writes the positions of the `count` highest of `seen` scores, ascending; of equals the first.
void choose(int32_t* out, const uint32_t* scores, int64_t seen, int64_t count) {
    if (seen <= count) {
        for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int32_t>(i);
        return;
    }
    constexpr int kShift = 20;  // bins by sign, exponent and the first bits of the fraction
    std::vector<int32_t> bins(1 << (32 - kShift));
    for (int64_t i = 0; i < seen; ++i) ++bins[scores[i] >> kShift];
    int64_t left = count;
    uint32_t bin = static_cast<uint32_t>(bins.size()) - 1;
    while (bins[bin] < left) left -= bins[bin--];
    std::vector<uint32_t> inside;
    inside.reserve(bins[bin]);
    for (int64_t i = 0; i < seen; ++i)
        if (scores[i] >> kShift == bin) inside.push_back(scores[i]);
    std::nth_element(inside.begin(), inside.begin() + (left - 1), inside.end(),
                     std::greater<uint32_t>());
    const uint32_t least = inside[left - 1];
    left -= std::count_if(inside.begin(), inside.begin() + left,
                          [least](uint32_t score) { return score > least; });
    for (int64_t i = 0, n = 0; n < count; ++i) {
        const bool equal = scores[i] == least && left > 0;
        left -= equal;
        out[n] = static_cast<int32_t>(i);
        n += scores[i] > least || equal;
    }
}

template <typename T>
void select_tokens(const TokenSelection& a) {
    for (int64_t first = 0; first < a.queries; first += kQueriesAtOnce) {
        const int64_t queries = std::min(kQueriesAtOnce, a.queries - first);
        const Scorer<T> scorer(a, first, queries);
        const int64_t longest = *std::max_element(a.seen + first, a.seen + first + queries);
        const int64_t stride = padded(longest, kPanel);
        const Buffer<uint32_t> scores = make_buffer<uint32_t>(queries * stride);
        const int64_t products = queries * a.heads * a.size * longest;
        run_workers(stride / kPanel, products >= kParallelProducts, [&](WorkItems& items) {
            const Buffer<T> tiles = make_buffer<T>(scorer.tiles_size());
            for (int64_t panel; items.next(&panel);)
                scorer.score(panel * kPanel, longest, tiles.get(), &scores[panel * kPanel], stride);
        });
        run_workers(queries, queries * longest >= kParallelProducts, [&](WorkItems& items) {
            for (int64_t q; items.next(&q);)
                choose(a.out + (first + q) * a.count, &scores[q * stride], a.seen[first + q],
                       a.count);
        });
    }
}

void any_select(const TokenSelection& a, int32_t dtype) {
    auto run = dtype == kFloat32    ? select_tokens<float>
               : dtype == kBFloat16 ? select_tokens<BFloat16>
                                    : select_tokens<Float16>;
    run(a);
}

// `Unit`: an integer of the size of a unit.
template <typename Unit>
void copy_units(const KeyCopy& a, int64_t units) {
    const int64_t tiles = padded(a.count, kLanes) / kLanes;
    run_workers(tiles, a.count * units >= kParallelWords, [&](WorkItems& items) {
        for (int64_t tile; items.next(&tile);) {
            const Unit* from[kLanes];
            for (int64_t k = 0; k < kLanes; ++k) {
                const int64_t position = a.positions[std::min(tile * kLanes + k, a.count - 1)],
                              slot = a.table[position / a.block_size] * a.block_size +
                                     position % a.block_size;
                from[k] = static_cast<const Unit*>(a.cache) + slot / kLanes * kLanes * units +
                          slot % kLanes;
            }
            Unit* to = static_cast<Unit*>(a.to) + tile * kLanes * units;
            for (int64_t unit = 0; unit < units; ++unit)
                for (int k = 0; k < kLanes; ++k)
                    to[unit * kLanes + k] = from[k][unit * kLanes];
        }
    });
}

void copy_keys(const KeyCopy& a, int32_t dtype) {
    if (dtype == kFloat32) return copy_units<uint32_t>(a, a.size);
    if (dtype == kBFloat16) return copy_units<uint32_t>(a, a.size / 2);
    copy_units<uint16_t>(a, a.size);
}

}  // namespace

extern const SelectionOps TABLE(selection_);
const SelectionOps TABLE(selection_) = {any_select, copy_keys};
