// GEMM with weights of eight- and four-bit codes, and rounding; compiled once per instruction set.
//
// Panels are those of linear.cpp (layout in integer_panels.h), each read sequentially, once. Rows
// of x are quantized per group of inputs (quantized_rows.h). The sum of a group's products is
// exact, and groups are added in order, so results are bitwise batch-invariant on every instruction
// set.
#define PAIRED_VECTORS
#include "cpu/quant/quantized.h"

#include <memory>

#include "cpu/variant.h"
#include "cpu/buffer.h"
#include "cpu/quant/chunked_codes.h"
#include "cpu/quant/integer_panels.h"
#include "cpu/quant/tile_codes.h"

namespace {

// Prefetch distance in bytes, measured separately for each kind.
template <int kCode>
constexpr int64_t kFetchAhead = kCode == kInt8       ? 2048
                                : kHasByteRow<kCode> ? 12288
                                                     : 8192;
constexpr IntegerLayout kExact =
    kMultipliesBytes ? IntegerLayout::kTwoBytes : IntegerLayout::kPairs;  // layout of 16-bit x
constexpr int kCodeRows =
    kMultipliesBytes ? 3 : kRows;  // rows per block; a sum for each byte of x takes two registers

// --- rounding weights
// ---------------------------------------------------------------------------------------

// Returns the scale of a group. With four bits the largest magnitude becomes -8.
template <int kCode>
BFloat16 symmetric_scale(const float* numbers, int64_t count) {
    float low = 0, high = 0;
    for (int64_t i = 0; i < count; ++i) {
        low = numbers[i] < low ? numbers[i] : low;
        high = numbers[i] > high ? numbers[i] : high;
    }
    const float furthest = -low > high ? low : high;
    BFloat16 scale[kLanes];
    store(scale, spread(kCode == kInt4 ? furthest / Codes<kInt4>::kMin
                                       : std::max(-low, high) / Codes<kInt8>::kMax));
    return scale[0];
}

template <int kCode>
void quantize_group(int8_t* codes, const float* numbers, int64_t count, float scale) {
    const float inverse = scale == 0 ? 0 : 1 / scale;
    for (int64_t i = 0; i < count; ++i) {
        float code = numbers[i] * inverse;
        code = code > Codes<kCode>::kMin ? code : Codes<kCode>::kMin;  // NaN becomes an integer too
        code = code < Codes<kCode>::kMax ? code : Codes<kCode>::kMax;
        codes[i] = static_cast<int8_t>(static_cast<int32_t>(code + (code < 0 ? -0.5f : 0.5f)));
    }
}

// Writes one row's codes of a group and its scale into a panel with this number of columns.
template <int kCode>
void write_group(uint8_t* group, int64_t column, int64_t columns, const void* scale,
                 const uint16_t* zero, const int8_t* codes, int64_t inputs, const Layout& at) {
    std::memcpy(group + column * at.scale_bytes(), scale, at.scale_bytes());
    if (zero) {
        const auto stored =
            static_cast<uint16_t>(*zero + (at.zeros == kIntZeros ? Codes<kCode>::kZero : 0));
        std::memcpy(group + (columns + column) * sizeof stored, &stored, sizeof stored);
    }
    uint8_t* target = group + at.codes_at(columns) + column * sizeof(uint32_t);
    for (int64_t k = 0; k < inputs;
         k += Codes<kCode>::kInputs, target += columns * sizeof(uint32_t)) {
        const uint32_t word = Codes<kCode>::word(codes + k);
        std::memcpy(target, &word, sizeof word);
    }
}

// Packs one panel's part of rows [first, last), from a matrix with any strides.
template <typename T, int kCode>
void pack_panel(uint8_t* to, const T* from, int64_t panel, int64_t first, int64_t last,
                Matrix source, Layout at) {
    const int64_t columns = at.columns(panel), filled = at.filled();
    const int64_t begin = std::max(first, panel * kPanel),
                  end = std::min(last, panel * kPanel + columns);
    std::unique_ptr<float[]> numbers(new float[filled]());
    std::unique_ptr<int8_t[]> codes(new int8_t[filled]);
    for (int64_t row = begin; row < end; ++row) {
        read_row(numbers.get(), from + (row - first) * source.row_stride, source.width,
                 source.column_stride);
        for (int64_t g = 0; g < at.groups(); ++g) {
            const int64_t inputs = at.inputs(g), column = row - panel * kPanel;
            const float* own = numbers.get() + g * at.group;
            uint8_t* group = to + at.panel_at(panel) + at.group_at(g, columns);
            const BFloat16 scale = symmetric_scale<kCode>(own, inputs);
            quantize_group<kCode>(codes.get(), own, inputs, widened(scale));
            write_group<kCode>(group, column, columns, &scale.bits, nullptr, codes.get(), inputs,
                               at);
        }
    }
}

// Packs existing codes with scales, zero points (or null) [rows, groups], and factors (or null).
template <int kCode>
void pack_all_codes(void* to, const int8_t* codes, const uint8_t* scales, const uint16_t* zeros,
                    const float* factors, int64_t first, Matrix source, Layout at) {
    run_workers(
        source.rows, source.rows * source.width >= kParallelProducts, [=](WorkItems& items) {
            std::unique_ptr<int8_t[]> own(new int8_t[at.filled()]());
            for (int64_t i; items.next(&i);) {
                std::memcpy(own.get(), codes + i * source.row_stride, source.width);
                const int64_t panel = (first + i) / kPanel, columns = at.columns(panel),
                              column = (first + i) % kPanel;
                uint8_t* panel_start = static_cast<uint8_t*>(to) + at.panel_at(panel);
                if (factors)
                    std::memcpy(panel_start + column * sizeof(float), factors + i, sizeof(float));
                for (int64_t g = 0; g < at.groups(); ++g) {
                    const int64_t of = i * at.groups() + g;
                    write_group<kCode>(panel_start + at.group_at(g, columns), column, columns,
                                       scales + of * at.scale_bytes(), zeros ? zeros + of : nullptr,
                                       own.get() + g * at.group, at.inputs(g), at);
                }
            }
        });
}

template <typename T, int kCode>
void pack(void* to, const void* from, int64_t first, Matrix source, int64_t rows,
          IntegerFormat format) {
    const Layout at(rows, source.width, format);
    const int64_t last = first + source.rows, begin = first / kPanel;
    const int64_t count = source.rows ? (last - 1) / kPanel - begin + 1 : 0;
    run_workers(count, source.rows * source.width >= kParallelProducts, [=](WorkItems& items) {
        for (int64_t i; items.next(&i);)
            pack_panel<T, kCode>(static_cast<uint8_t*>(to), static_cast<const T*>(from), begin + i,
                                 first, last, source, at);
    });
}

template <int kCode>
void unpack(void* out, const void* weight, const int64_t* ids, int64_t count, Layout at,
            int32_t dtype) {
    run_workers(count, count * at.width >= kParallelProducts, [=](WorkItems& items) {
        std::unique_ptr<float[]> numbers(new float[at.filled() + kLanes]());
        for (int64_t i; items.next(&i);) {
            const int64_t panel = ids[i] / kPanel, columns = at.columns(panel),
                          column = ids[i] % kPanel;
            const int64_t tile = column / kLanes, lane = column % kLanes;
            const uint8_t* panel_start = static_cast<const uint8_t*>(weight) + at.panel_at(panel);
            const float factor = at.has_factors() ? load_factors(panel_start, tile)[lane] : 1;
            for (int64_t g = 0; g < at.groups(); ++g) {
                const uint8_t* group = panel_start + at.group_at(g, columns);
                const float scale = load_scales<kCode>(group, tile, at)[lane] * factor;
                const float zero = zero_at<kCode>(group, column, columns, at);
                const uint8_t* target = group + at.codes_at(columns) + column * sizeof(uint32_t);
                float* own = numbers.get() + g * at.group;
                for (int64_t k = 0; k < at.inputs(g);
                     k += Codes<kCode>::kInputs, target += columns * sizeof(uint32_t)) {
                    uint32_t word;
                    std::memcpy(&word, target, sizeof word);
                    for (int64_t j = 0; j < Codes<kCode>::kInputs; ++j)
                        own[k + j] = scale * Codes<kCode>::code(word, j, zero);
                }
            }
            write_numbers(out, i * at.width, numbers.get(), at.width, dtype);
        }
    });
}

// --- products
// -----------------------------------------------------------------------------------------------

// Adds a group's products of R rows of x and C tiles to the low sums and, for two-byte x, the high
// sums. Prefetches kLines lines for every four lines read.
template <int kCode, IntegerLayout kLayout, int R, int C, int kLines>
inline __attribute__((always_inline)) void add_group(Ints (&sums)[R][C], Ints (&high)[R][C],
                                                     const QuantizedRows& rows, int64_t at,
                                                     const uint8_t* from, int64_t columns,
                                                     int64_t inputs, const uint8_t* fetched) {
    using Code = Codes<kCode>;
    constexpr int inputs_at_once = kAtOnce<kLayout>;
    for (int64_t k = 0; k < inputs; k += Code::kInputs, from += columns * sizeof(uint32_t)) {
        Words words[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) words[c] = load_words(from + c * sizeof(Words));
#pragma GCC unroll 4
        for (int line = 0; line < kLines; ++line)
            __builtin_prefetch(fetched + line * kCacheLine, 0, 2);
        fetched += kLines * kCacheLine;
#pragma GCC unroll 4
        for (int i = 0; i < Code::kInputs / inputs_at_once; ++i) {
            Words own[C];
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c)
                own[c] = kMultipliesBytes ? Code::quad(words[c], i)
                                          : pair(Code::quad(words[c], i / 2), i % 2);
            add_products<kLayout>(sums, high, rows, at + k + i * inputs_at_once, rows.run, own);
        }
    }
}

// Rows of x from `row` times the tiles of a panel from `tile`.
template <int kCode, IntegerLayout kLayout, int R, int C, int kLines>
void block(Floats (&totals)[R][C], const QuantizedRows& rows, int64_t row, const uint8_t* panel,
           int64_t tile, int64_t columns, const uint8_t* fetched, Layout at) {
    for (int64_t g = 0; g < at.groups(); ++g) {
        const int64_t start = at.group_at(g, columns), of = g * rows.count + row,
                      scales_at = span_of(g, rows) * rows.count + row;
        const uint8_t* group = panel + start;
        const uint8_t* ahead = fetched + start * kLines / 4;
        const int64_t head = at.codes_at(columns) * kLines / 4;
        if (kLines)
            for (int64_t line = 0; line < head; line += kCacheLine)
                __builtin_prefetch(ahead + line, 0, 2);
        Ints sums[R][C], high[R][C] = {};
        for (int c = 0; c < C; ++c) {
            const Ints zeros = load_zeros<kCode>(group, tile + c, columns, at);
            for (int r = 0; r < R; ++r) sums[r][c] = zeros * -rows.sums[of + r];
        }
        add_group<kCode, kLayout, R, C, kLines>(sums, high, rows, rows.at(row, g * at.group),
                                                group + at.codes_at(columns) + tile * sizeof(Words),
                                                columns, at.inputs(g), ahead + head);
        for (int c = 0; c < C; ++c) {
            const GroupScale<kCode> group_scale(group, tile + c, columns, at);
            for (int r = 0; r < R; ++r) {
                const Ints sum = combined<kLayout>(sums[r][c], high[r][c]);
                totals[r][c] = group_scale.added(totals[r][c], sum, rows.sums[of + r],
                                                 rows.scales[scales_at + r]);
            }
        }
    }
}

struct Range {
    int64_t first, last;

    // Splits it evenly into blocks of up to max_rows rows, and calls body(first, count, index of
    // the block, blocks).
    template <typename Body>
    void split(int64_t max_rows, Body body) const {
        const int64_t items = (last - first + max_rows - 1) / max_rows;
        for (int64_t i = 0; i < items; ++i) {
            const int64_t from = first + (last - first) * i / items;
            body(from, first + (last - first) * (i + 1) / items - from, i, items);
        }
    }
};

// Rows of x one by one times the tiles of a panel one by one: one panel is not worth more code.
template <int kCode, IntegerLayout kLayout>
void each_tile(const ResultWriter& results, int64_t column, int64_t left, const QuantizedRows& rows,
               Range own, const uint8_t* panel_start, int64_t columns, Layout at) {
    for (int64_t row = own.first; row < own.last; ++row)
        for (int64_t tile = 0; tile * kLanes < columns; ++tile) {
            Floats totals[1][1] = {};
            block<kCode, kLayout, 1, 1, 0>(totals, rows, row, panel_start, tile, columns, nullptr,
                                           at);
            if (at.has_factors())
                multiply_by_factors(totals, 1, panel_start, tile, columns / kLanes);
            results.write(row, column + tile * kLanes, totals, 1, left - tile * kLanes);
        }
}

#if defined(TILE_REGISTERS)
// Adds the products of one group to totals of up to sixteen rows and two tiles. `integers` are its
// codes, quad after quad.
template <int kCode, IntegerLayout kLayout>
inline void add_tiled_group(Floats (*totals)[kTiles], const QuantizedRows& rows, int64_t row,
                            int64_t count, const Layout& at, int64_t index, const uint8_t* group,
                            const uint8_t* integers, int64_t tile, int64_t tiles, int64_t quads,
                            int64_t depth) {
    const int64_t step = tiles * sizeof(Words), x = rows.at(row, index * at.group);
    const uint8_t* first = integers + tile * sizeof(Words);
    const uint8_t* second = tile + 1 < tiles ? first + sizeof(Words) : first;
    ByteBlock::clear();
    for (int64_t k = 0; k < quads; k += depth)
        ByteBlock::add<kLayout == IntegerLayout::kTwoBytes>(
            &rows.high[kLayout == IntegerLayout::kTwoBytes ? x + k * kQuad : 0],
            &rows.low[x + k * kQuad], rows.run, first + k * step, second + k * step, step);
    Ints high[kTileRows][2], low[kTileRows][2];
    ByteBlock::store(high, low);
    for (int c = 0; c < 2 && tile + c < tiles; ++c) {
        const GroupScale<kCode> group_scale(group, tile + c, tiles * kLanes, at);
        const Ints zeros = load_zeros<kCode>(group, tile + c, tiles * kLanes, at);
        for (int64_t r = 0; r < count; ++r) {
            const int32_t x_sum = rows.sums[index * rows.count + row + r];
            const Ints sum = combined<kLayout>(low[r][c], high[r][c]) - zeros * x_sum;
            const float x_scale = rows.scales[span_of(index, rows) * rows.count + row + r];
            totals[r][tile + c] = group_scale.added(totals[r][tile + c], sum, x_sum, x_scale);
        }
    }
}

// Rows [first, last) of x times one panel, group by group; the next group is prefetched.
template <int kCode, IntegerLayout kLayout>
void tiled_product(const ResultWriter& results, int64_t column, int64_t left,
                   const QuantizedRows& rows, Range own, const uint8_t* panel_start,
                   int64_t columns, Layout at) {
    const int64_t first = own.first, last = own.last, depth = depth_of(at.group);
    const Buffer<float> sums = make_buffer<float>((last - first) * kPanel);
    auto* totals = reinterpret_cast<Floats(*)[kTiles]>(sums.get());
    alignas(64) uint8_t wide[kLargestGroup * kPanel];
    const ByteBlock block(depth);
    for (int64_t g = 0; g < at.groups(); ++g) {
        const int64_t inputs = at.inputs(g), quads = rounded_up(inputs / kQuad, depth);
        const uint8_t *group = panel_start + at.group_at(g, columns),
                      *integers = group + at.codes_at(columns);
        const uint8_t *next = panel_start + at.group_at(g + 1, columns),
                      *end = panel_start + at.group_at(g + 2, columns);
        for (; next < end; next += kCacheLine) __builtin_prefetch(next, 0, 2);
        if (kCode != kInt8 || quads * kQuad > inputs) {
            widen<kCode>(wide, integers, columns, inputs, quads);
            integers = wide;
        }
        for (int64_t row = first; row < last; row += kTileRows)
            for (int64_t tile = 0; tile * kLanes < columns; tile += 2)
                add_tiled_group<kCode, kLayout>(totals + (row - first), rows, row,
                                                std::min(kTileRows, last - row), at, g, group,
                                                integers, tile, columns / kLanes, quads, depth);
    }
    if (at.has_factors())
        multiply_by_factors(totals, last - first, panel_start, 0, columns / kLanes);
    results.write(first, column, totals, last - first, left);
}
#endif

// Rows of x times a whole panel; rows are split evenly. A single block prefetches within this
// panel; of several, the first two prefetch the next panel.
template <int kCode, IntegerLayout kLayout>
void whole_panel(const ResultWriter& results, int64_t column, int64_t left,
                 const QuantizedRows& rows, Range own, const uint8_t* panel_start, Layout at) {
    own.split(kCodeRows, [&](int64_t from, int64_t rows_here, int64_t b, int64_t blocks) {
        with_rows<kCodeRows>(rows_here, [&](auto count) {
            constexpr int R = decltype(count)::value;
            constexpr int kSome = R == 1 ? 4 : 2,
                          kNone = R == 1 ? 4 : 0;  // with several blocks none has a single row
            const int64_t bytes = kPanel * at.row_bytes();
            const auto run = blocks == 1 ? block<kCode, kLayout, R, kTiles, 4>
                             : b < 2     ? block<kCode, kLayout, R, kTiles, kSome>
                                         : block<kCode, kLayout, R, kTiles, kNone>;
            Floats totals[R][kTiles] = {};
            run(totals, rows, from, panel_start, 0, kPanel,
                blocks == 1 ? panel_start + kFetchAhead<kCode>
                            : panel_start + bytes + b * (bytes / 2),
                at);
            if (at.has_factors()) multiply_by_factors(totals, R, panel_start, 0, kTiles);
            results.write(from, column, totals, R, left);
        });
    });
}

// Per-thread state for multiplying rows by panels.
template <int kCode, IntegerLayout kLayout>
struct Worker {
    const ResultWriter results;
    const QuantizedRows& rows;
    const Layout at;
    const ChunkedCodes<kCode> chunked;

    Worker(const Product& p, int32_t dtype, const QuantizedRows& rows, const Layout& at)
        : results(p, dtype), rows(rows), at(at), chunked(kWholePanels ? 0 : rows.count) {}

    void multiply(const void* weight, int64_t panel, int64_t first, int64_t last) const {
        const int64_t columns = at.columns(panel), column = panel * kPanel, left = at.rows - column;
        const uint8_t* panel_start = static_cast<const uint8_t*>(weight) + at.panel_at(panel);
#if defined(TILE_REGISTERS)
        if (last - first >= kTiledRows)
            return tiled_product<kCode, kLayout>(results, column, left, rows, {first, last},
                                                 panel_start, columns, at);
#endif
        if constexpr (!kWholePanels)
            chunked.multiply(results, column, rows, first, last, panel_start, columns, at);
        else if (columns == kPanel)
            whole_panel<kCode, kLayout>(results, column, left, rows, {first, last}, panel_start,
                                        at);
        else
            each_tile<kCode, kLayout>(results, column, left, rows, {first, last}, panel_start,
                                      columns, at);
    }

    void fetch_first(const void* weight, int64_t panel) const {
        const uint8_t* from = static_cast<const uint8_t*>(weight) + at.panel_at(panel);
        const int64_t bytes = std::min(kFetchAhead<kCode>, at.columns(panel) * at.row_bytes());
        for (int64_t line = 0; line < bytes; line += kCacheLine)
            __builtin_prefetch(from + line, 0, 2);
    }
};

// --- one function per kind of code, chosen by number
// --------------------------------------------------------

template <typename Body>
void with_code(int64_t code, Body body) {
    code == kInt4   ? body(std::integral_constant<int, kInt4>())
    : code == kInt8 ? body(std::integral_constant<int, kInt8>())
                    : body(std::integral_constant<int, kFloat4>());
}

void any_pack(void* to, const void* from, int64_t first, Matrix source, int64_t rows,
              IntegerFormat format, int32_t dtype) {
    with_dtype(dtype, [&](auto number) {
        using T = decltype(number);
        format.code == kInt4 ? pack<T, kInt4>(to, from, first, source, rows, format)
                             : pack<T, kInt8>(to, from, first, source, rows, format);
    });
}

void any_pack_codes(void* to, const int8_t* codes, const void* scales, const uint16_t* zeros,
                    const float* factors, int64_t first, Matrix source, int64_t rows,
                    IntegerFormat format) {
    with_code(format.code, [&](auto code) {
        const Layout at(rows, source.width, format);
        pack_all_codes<code()>(to, codes, static_cast<const uint8_t*>(scales), zeros, factors,
                               first, source, at);
    });
}

void any_unpack(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width,
                int64_t rows, IntegerFormat format, int32_t dtype) {
    with_code(format.code, [&](auto code) {
        unpack<code()>(out, weight, ids, count, Layout(rows, width, format), dtype);
    });
}

// Calls body(kind of code, layout of x) with compile-time constants. 8-bit x is for 8-bit weights
// only.
template <typename Body>
void with_both(const IntegerFormat& format, Body body) {
    using Exact = std::integral_constant<IntegerLayout, kExact>;
    using Short = std::integral_constant<IntegerLayout, kMultipliesBytes ? IntegerLayout::kByte
                                                                         : IntegerLayout::kPairs>;
    if (format.x_bits == 8) return body(std::integral_constant<int, kInt8>(), Short());
    with_code(format.code, [&](auto code) { body(code, Exact()); });
}

// 8-bit x has one scale per row, 16-bit x one per group. `grouped`: some weights may have one row.
QuantizedRows rows_for(int64_t count, const Layout& at, int64_t x_bits, bool grouped = false) {
    const bool has_byte_rows = kHasByteRow<kInt4> && at.bits == 4 && (grouped || count == 1);
    const bool has_others = !has_byte_rows || grouped || !fits_byte_rows(at);
    return QuantizedRows(count, {at.filled(), x_bits == 8 ? at.filled() : at.group, at.group},
                         x_bits, kMultipliesBytes || has_byte_rows,
                         !kMultipliesBytes && has_others);
}

void any_product(const Product& p, const int32_t* order, IntegerFormat format, int32_t dtype) {
    const Layout at(p.out, p.in, format);
    QuantizedRows rows = rows_for(p.rows, at, format.x_bits);
    quantize_rows(rows, p, p.rows, dtype, order);
    with_both(format, [&](auto code, auto form) {
        multiply_panels(p, at.panels(),
                        [&] { return Worker<code(), form()>(p, dtype, rows, at); });
    });
}

void any_grouped(const Product& p, const int64_t* counts, int64_t groups, IntegerFormat format,
                 int32_t dtype) {
    const Layout at(p.out, p.in, format);
    const GroupedRows own(counts, groups);
    QuantizedRows rows = rows_for(own.rows, at, format.x_bits, true);
    quantize_rows(rows, p, own.rows, dtype);
    with_both(format, [&](auto code, auto form) {
        multiply_groups(p, own, at.panels(), at.bytes(),
                        [&] { return Worker<code(), form()>(p, dtype, rows, at); });
    });
}

}  // namespace

extern const QuantizedOps TABLE(quantized_);
const QuantizedOps TABLE(quantized_) = {any_pack, any_pack_codes, any_unpack, any_product,
                                        any_grouped};
