// Grouped LoRA products; compiled once per instruction set. Rows of one adapter share a pass over
// its factors. The summation order is fixed, so results are bitwise batch-invariant.
//
// With few rows the cost is reading the factors once, sequentially. All sums are float32.
#define PAIRED_VECTORS
#include "cpu/gemm/low_rank.h"

#include "cpu/variant.h"
#include "cpu/vector_memory.h"
#include "cpu/vectors.h"
#include "cpu/gemm/low_rank_split.h"
#include "cpu/threading/parallel.h"

namespace {

// Rows and ranks at once: their sums stay in registers.
#if defined(__AVX512F__)
constexpr int64_t kRowsAtOnce = 4;
constexpr int kRanksAtOnce = kRanks;
#else
constexpr int64_t kRowsAtOnce = 1;
constexpr int kRanksAtOnce = 2;
#endif
constexpr int64_t kParallelNumbers = 1 << 15;

// Two vectors. For bfloat16 the first holds the even elements, the second the odd ones: a shift
// apart.
struct Pair {
    Floats first, second;
};

template <typename T>
inline Pair load_pair(const T* from) {
    return {load(from), load(from + kLanes)};
}

template <>
inline Pair load_pair(const BFloat16* from) {
    const Words both = load_vector<Words>(from);
    return {(Floats)(both << 16), (Floats)(both & 0xffff0000)};
}

template <typename T>
inline void store_pair(T* to, const Pair& value) {
    store(to, value.first);
    store(to + kLanes, value.second);
}

inline Words rounded(Floats v) {  // to nearest, ties to even; in the upper half
    const Words bits = (Words)v;
    return select(v == v, bits + 0x7fff + ((bits >> 16) & 1), Words{} + 0x7fc00000);
}

template <>
inline void store_pair(BFloat16* to, const Pair& value) {
    const Words both = (rounded(value.first) >> 16) | (rounded(value.second) & 0xffff0000);
    store_vector(to, both);
}

// The last pair of a row; missing elements are zero.
template <typename T>
inline Pair load_pair(const T* from, int64_t count) {
    T numbers[kPair] = {};
    std::memcpy(numbers, from, count * sizeof(T));
    return load_pair(numbers);
}

template <typename T>
inline void add_pair(T* to, const Pair& value, int64_t count) {
    T numbers[kPair];
    const bool whole = count >= kPair;
    const Pair before = whole ? load_pair(to) : load_pair(to, count);
    store_pair(whole ? to : numbers, {before.first + value.first, before.second + value.second});
    if (!whole) std::memcpy(to, numbers, count * sizeof(T));
}

// Shrink of R rows by N of the K ranks of a block: narrow [R, N] = x @ a.T.
template <typename T, int R, int K, int N>
void shrink_ranks(const T* const* x, const T* a, int64_t in, float* narrow, int64_t stride) {
    Pair sums[R][N] = {};
    const auto step = [&](const Pair(&own)[R]) {
#pragma GCC unroll 4
        for (int k = 0; k < N; ++k) {
            const Pair factor = load_pair(a + k * kPair);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                sums[r][k].first += own[r].first * factor.first;
                sums[r][k].second += own[r].second * factor.second;
            }
        }
        a += K * kPair;
    };
    int64_t i = 0;
    for (; i + kPair <= in; i += kPair) {
        Pair own[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) own[r] = load_pair(x[r] + i);
        step(own);
    }
    if (i < in) {
        Pair own[R];
        for (int r = 0; r < R; ++r) own[r] = load_pair(x[r] + i, in - i);
        step(own);
    }
    for (int r = 0; r < R; ++r)
        for (int k = 0; k < N; ++k)
            narrow[r * stride + k] = sum(sums[r][k].first + sums[r][k].second);
}

// Shrink of R rows by the ranks of a block, as many at once as registers hold.
template <typename T, int R, int K, int N = K>
void shrink_block(const T* const* x, const T* a, int64_t in, float* narrow, int64_t stride) {
    constexpr int now = N < kRanksAtOnce ? N : kRanksAtOnce;
    shrink_ranks<T, R, K, now>(x, a, in, narrow, stride);
    if constexpr (N > now)
        shrink_block<T, R, K, N - now>(x, a + now * kPair, in, narrow + now, stride);
}

template <typename T, int K>
void shrink_rows(const T* const* x, int64_t rows, const T* a, int64_t in, float* narrow,
                 int64_t stride) {
    for (; rows >= kRowsAtOnce;
         rows -= kRowsAtOnce, x += kRowsAtOnce, narrow += kRowsAtOnce * stride)
        shrink_block<T, kRowsAtOnce, K>(x, a, in, narrow, stride);
    if constexpr (kRowsAtOnce == 1) return;
    if (rows == 3) shrink_block<T, 3, K>(x, a, in, narrow, stride);
    if (rows == 2) shrink_block<T, 2, K>(x, a, in, narrow, stride);
    if (rows == 1) shrink_block<T, 1, K>(x, a, in, narrow, stride);
}

// Shrink by `ranks` ranks from `first`, for some of a group's rows.
template <typename T>
void shrink(const Adapted& p, const Group& group, int64_t row, int64_t rows, int64_t first) {
    const T* x[kRowsOfPiece];
    for (int64_t i = 0; i < rows; ++i)
        x[i] = static_cast<const T*>(p.x) + group.rows[row + i].number * p.x_stride;
    const int64_t rank = group.adapter->rank, padded = (p.in + kPair - 1) / kPair * kPair;
    const T* a = static_cast<const T*>(group.adapter->a) + first * padded;
    float* narrow = group.narrow + row * rank + first;
    switch (std::min(kRanks, rank - first)) {
        case 4: return shrink_rows<T, 4>(x, rows, a, p.in, narrow, rank);
        case 3: return shrink_rows<T, 3>(x, rows, a, p.in, narrow, rank);
        case 2: return shrink_rows<T, 2>(x, rows, a, p.in, narrow, rank);
        case 1: return shrink_rows<T, 1>(x, rows, a, p.in, narrow, rank);
    }
}

// Expand of R rows of a panel of V pairs: out += narrow @ b.
template <typename T, int R, int V>
void expand_block(T* const* out, const float* narrow, int64_t stride, const T* b, int64_t rank,
                  int64_t columns) {
    Pair sums[R][V] = {};
    for (int64_t k = 0; k < rank; ++k, b += V * kPair) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
            const Pair factor = load_pair(b + v * kPair);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                const float own = narrow[r * stride + k];
                sums[r][v].first += factor.first * own;
                sums[r][v].second += factor.second * own;
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) add_pair(out[r] + v * kPair, sums[r][v], columns - v * kPair);
}

template <typename T, int V>
void expand_rows(T** out, int64_t rows, const float* narrow, int64_t stride, const T* b,
                 int64_t rank, int64_t columns) {
    for (; rows >= kRowsAtOnce;
         rows -= kRowsAtOnce, out += kRowsAtOnce, narrow += kRowsAtOnce * stride)
        expand_block<T, kRowsAtOnce, V>(out, narrow, stride, b, rank, columns);
    if constexpr (kRowsAtOnce == 1) return;
    if (rows == 3) expand_block<T, 3, V>(out, narrow, stride, b, rank, columns);
    if (rows == 2) expand_block<T, 2, V>(out, narrow, stride, b, rank, columns);
    if (rows == 1) expand_block<T, 1, V>(out, narrow, stride, b, rank, columns);
}

// Expand of one panel of a part, for some of a group's rows; `at` is the part's first rank.
template <typename T>
void expand(const Adapted& p, const Group& group, int64_t row, int64_t rows,
            const LowRankPart& part, int64_t at, int64_t column) {
    T* out[kRowsOfPiece];
    for (int64_t i = 0; i < rows; ++i)
        out[i] = static_cast<T*>(p.out) + group.rows[row + i].number * p.out_stride + part.first +
                 column;
    const int64_t left = part.width - column, stride = group.adapter->rank;
    const T* b = static_cast<const T*>(part.b) + column * part.rank;
    const float* narrow = group.narrow + row * stride + at;
    if (left > kPair) return expand_rows<T, 2>(out, rows, narrow, stride, b, part.rank, left);
    expand_rows<T, 1>(out, rows, narrow, stride, b, part.rank, left);
}

template <typename T>
void add_bias(const Adapted& p, const Group& group) {
    const T* bias = static_cast<const T*>(group.adapter->bias);
    for (int64_t i = 0; i < group.count; ++i) {
        T* out = static_cast<T*>(p.out) + group.rows[i].number * p.out_stride;
        for (int64_t at = 0; at < p.columns; at += kPair) {
            const int64_t left = p.columns - at;
            add_pair(out + at, left < kPair ? load_pair(bias + at, left) : load_pair(bias + at),
                     left);
        }
    }
}

template <typename Work>
void share(const std::vector<Piece>& all, bool pays, Work work) {
    run_workers(static_cast<int64_t>(all.size()), pays, [&](WorkItems& items) {
        for (int64_t n; items.next(&n);) work(all[n]);
    });
}

template <typename T>
void add_of(const Adapted& p) {
    static thread_local LowRankSplit call;
    call.build(p);
    const bool pays = call.numbers >= kParallelNumbers;
    share(call.shrinks, pays, [&](const Piece& piece) {
        for (int64_t first = piece.first; first < piece.last; first += kRanks)
            shrink<T>(p, *piece.group, piece.row, piece.rows, first);
    });
    share(call.expands, pays, [&](const Piece& piece) {
        for (int64_t column = piece.first; column < piece.last; column += kColumns)
            expand<T>(p, *piece.group, piece.row, piece.rows, *piece.part, piece.rank, column);
    });
    for (const Group& group : call.groups)
        if (group.adapter->bias) add_bias<T>(p, group);
}

void add(const Adapted& p, int32_t dtype) {
    (dtype == kFloat32    ? add_of<float>
     : dtype == kBFloat16 ? add_of<BFloat16>
                          : add_of<Float16>)(p);
}

}  // namespace

extern const LowRankOps TABLE(low_rank_);
const LowRankOps TABLE(low_rank_) = {add};
