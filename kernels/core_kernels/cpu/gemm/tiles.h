// The micro-kernel of all products: rows times tiles of sixteen columns.
//
// Data is grouped in units: one number, or two neighbours for bfloat16, which instructions multiply
// and add together. A tile stores, unit after unit, the units of its sixteen columns. Each result
// is one lane's sum over the units in order: it depends on its own row and column only.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#endif

#include "cpu/vectors.h"
#include "cpu/vector_memory.h"
#include "cpu/gemm/tile_registers.h"

namespace {

// Whether instructions multiply pairs of bfloat16 and add both products.
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr bool kMultipliesPairs = true;
#else
constexpr bool kMultipliesPairs = false;
#endif

constexpr int kTiles = 4;
constexpr int kPanel = kTiles * kLanes;
// Largest block of sums that stays in registers.
#if defined(__AVX512F__)
constexpr int kRows = 6, kUnroll = kTiles;
#elif defined(__AVX2__)
constexpr int kRows = 4, kUnroll = 1;
#else
constexpr int kRows = 2, kUnroll = 1;
#endif

inline float widened(float value) { return value; }
inline float widened(Float16 value) { return load(&value, 1)[0]; }
inline float widened(BFloat16 value) {
    const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

template <typename T>
struct Units {  // float and Float16: a unit is one number
    using Number = T;
    static constexpr int64_t kNumbers = 1;
    typedef Floats Spread;
    typedef Floats Column;
    static Spread spread_of(const T* x) { return spread(widened(*x)); }
    static Column column_of(const T* tile) { return load(tile); }
    static Column first_only(Column column) { return column; }
    static Floats add_product(Floats sum, Spread x, Column w) { return sum + x * w; }
};

template <>
struct Units<BFloat16> {
    using Number = BFloat16;
    static constexpr int64_t kNumbers = 2;
#if defined(__AVX512BF16__)
    typedef __m512i Spread;
    typedef __m512i Column;
    static Spread spread_of(const BFloat16* x) {
        int32_t pair;
        std::memcpy(&pair, x, sizeof pair);
        return _mm512_set1_epi32(pair);
    }
    static Column column_of(const BFloat16* tile) { return _mm512_loadu_si512(tile); }
    static Column first_only(Column column) {
        return _mm512_and_si512(column, _mm512_set1_epi32(0xffff));
    }
    static Floats add_product(Floats sum, Spread x, Column w) {
        return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w);
    }
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    typedef Words Spread;
    typedef Words Column;
    static Spread spread_of(const BFloat16* x) {
        uint32_t pair;
        std::memcpy(&pair, x, sizeof pair);
        return Words{} + pair;
    }
    static Column column_of(const BFloat16* tile) { return load_vector<Words>(tile); }
    static Column first_only(Column column) { return column & 0xffff; }
    static Floats add_product(Floats sum, Spread x, Column w) {
        return (Floats)in_registers((Words)sum, x, w, [](auto own, auto a, auto b) {
            return (decltype(own))vbfdotq_f32((float32x4_t)own, (bfloat16x8_t)a, (bfloat16x8_t)b);
        });
    }
#else
    struct Spread {
        Floats first, second;
    };
    struct Column {
        Words pairs;
    };
    static Spread spread_of(const BFloat16* x) {
        return {spread(widened(x[0])), spread(widened(x[1]))};
    }
    static Column column_of(const BFloat16* tile) {
        Column column;
        std::memcpy(&column.pairs, tile, sizeof column.pairs);
        return column;
    }
    static Column first_only(Column column) { return {column.pairs & 0xffff}; }
    static Floats add_product(Floats sum, Spread x, Column w) {
        sum = sum + x.first * (Floats)(w.pairs << 16);
        return sum + x.second * (Floats)(w.pairs & 0xffff0000);
    }
#endif
};

template <typename T>
constexpr int64_t unit_bytes() {
    return sizeof(T) * Units<T>::kNumbers;
}

// True if products of many rows use tile registers.
template <typename T>
constexpr bool kTiled = kTileRegisters && std::is_same_v<T, BFloat16>;
constexpr int64_t kChunk = 16;  // units that are summed before they are added to a total
constexpr int kTiledRows = 4;   // with fewer rows vector registers suffice: memory is the limit
// Maximum rows of a block of other products.
template <typename T>
constexpr int kRowsOf = kTiled<T> ? kTiledRows - 1 : kRows;

// Memory to prefetch during a product.
struct Prefetch {
    const char* from = nullptr;  // null: none
    int64_t step = 0;            // bytes per step; 128: two lines a step, 256: four
};

inline __attribute__((always_inline)) void prefetch_unit(Prefetch ahead, int64_t unit) {
    if (!ahead.from) return;
    __builtin_prefetch(ahead.from + unit * ahead.step, 0, 2);
    if (ahead.step >= 128) __builtin_prefetch(ahead.from + unit * ahead.step + 64, 0, 2);
    if (ahead.step >= 256) {
        __builtin_prefetch(ahead.from + unit * ahead.step + 128, 0, 2);
        __builtin_prefetch(ahead.from + unit * ahead.step + 192, 0, 2);
    }
}

#if defined(TILE_REGISTERS)
// Flushes subnormals to zero during its lifetime, as tile registers do.
class FlushDenormals {
public:
    FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kToZero); }
    ~FlushDenormals() { _mm_setcsr(before_); }
    FlushDenormals(const FlushDenormals&) = delete;

private:
    static constexpr unsigned kToZero = 0x8040;  // DAZ and FTZ
    const unsigned before_;
};

// `multiply` in the order of tile registers: within a chunk, the first products and the second
// products are summed separately.
template <int R, int C>
inline __attribute__((always_inline)) void multiply_in_chunks(Floats (&sums)[R][C],
                                                              const BFloat16* x, int64_t x_stride,
                                                              const BFloat16* const (&tiles)[C],
                                                              int64_t tile_step, int64_t steps,
                                                              Prefetch ahead) {
    for (int64_t begin = 0; begin < steps; begin += kChunk) {
        const int64_t end = begin + kChunk < steps ? begin + kChunk : steps;
        __m512 first[R][C] = {}, second[R][C] = {};
        for (int64_t k = begin; k < end; ++k) {
            prefetch_unit(ahead, k);
            Words pairs[C];
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c)
                std::memcpy(&pairs[c], tiles[c] + k * tile_step, sizeof(Words));
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const BFloat16* pair = x + r * x_stride + 2 * k;
                const __m512 own = _mm512_set1_ps(widened(pair[0])),
                             other = _mm512_set1_ps(widened(pair[1]));
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) {
                    first[r][c] = _mm512_fmadd_ps(own, (__m512)(pairs[c] << 16), first[r][c]);
                    second[r][c] =
                        _mm512_fmadd_ps(other, (__m512)(pairs[c] & 0xffff0000), second[r][c]);
                }
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) sums[r][c] += (Floats)first[r][c] + (Floats)second[r][c];
    }
}
#else
struct FlushDenormals {
    ~FlushDenormals() {}  // avoids an unused-variable warning
};
#endif

// sums[r][c] += x[r] * tile c over `steps` units. Strides in elements.
template <typename T, int R, int C>
inline __attribute__((always_inline)) void multiply(Floats (&sums)[R][C], const T* x,
                                                    int64_t x_stride, const T* const (&tiles)[C],
                                                    int64_t tile_step, int64_t steps,
                                                    Prefetch ahead) {
#if defined(TILE_REGISTERS)
    if constexpr (kTiled<T>)
        return multiply_in_chunks<R, C>(sums, x, x_stride, tiles, tile_step, steps, ahead);
#endif
    using U = Units<T>;
    for (int64_t k = 0; k < steps; ++k) {
        typename U::Column columns[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) columns[c] = U::column_of(tiles[c] + k * tile_step);
        prefetch_unit(ahead, k);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const typename U::Spread row = U::spread_of(x + r * x_stride + k * U::kNumbers);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) sums[r][c] = U::add_product(sums[r][c], row, columns[c]);
        }
    }
}

template <int R>
struct Count {
    static constexpr int value = R;
};

// Calls body(Count<R>()) with R = rows, 1 to kRows.
template <int R = kRows, typename Body>
inline void with_rows(int64_t rows, Body body) {
    if constexpr (R > 1)
        if (rows < R) return with_rows<R - 1>(rows, body);
    body(Count<R>());
}

}  // namespace
