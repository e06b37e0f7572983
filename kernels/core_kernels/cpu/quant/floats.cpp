// GEMM with weights of eight-bit floats or four-bit codes; compiled once per instruction set.
//
// A group of a panel's inputs is decoded into a core's cache: to bfloat16 if x is bfloat16, else to
// float32. It is then multiplied like a packed weight. Only table entries are rounded, for
// bfloat16. The sum of a group is scaled and added to the total, so results are bitwise batch-
// invariant.
#define PAIRED_VECTORS
#include "cpu/quant/floats.h"

#include <algorithm>
#include <memory>

#include "cpu/variant.h"
#include "cpu/buffer.h"
#include "cpu/quant/float_panels.h"
#include "cpu/gemm/opened_tile.h"
#include "cpu/gemm/tile_products.h"
#include "cpu/gemm/wide_rows.h"
#include "cpu/processor.h"

namespace {

constexpr int64_t kFetchAhead = 8192;  // prefetch distance in bytes
constexpr int64_t kLargestGroup = 256;

// --- packing and unpacking
// ----------------------------------------------------------------------------------

void pack_codes(void* to, const uint8_t* codes, const void* scales, const float* factors,
                int64_t first, Matrix source, int64_t rows, FloatFormat format) {
    const FloatLayout at(rows, source.width, format);
    run_workers(
        source.rows, source.rows * source.width >= kParallelProducts, [=](WorkItems& items) {
            std::unique_ptr<uint8_t[]> own(new uint8_t[at.filled()]());
            for (int64_t i; items.next(&i);) {
                std::memcpy(own.get(), codes + i * source.row_stride, source.width);
                if (format.kind == kE4M3)  // one NaN is found faster than two
                    std::replace(own.get(), own.get() + source.width, uint8_t{0xff}, uint8_t{0x7f});
                const int64_t panel = (first + i) / kPanel, columns = at.columns(panel),
                              column = (first + i) % kPanel;
                uint8_t* own_panel = static_cast<uint8_t*>(to) + at.panel_at(panel);
                if (factors)
                    std::memcpy(own_panel + column * sizeof(float), factors + i, sizeof(float));
                for (int64_t g = 0; g < at.groups(); ++g) {
                    uint8_t* group = own_panel + at.group_at(g, columns);
                    std::memcpy(group + column * at.scale_bytes,
                                static_cast<const uint8_t*>(scales) +
                                    (i * at.groups() + g) * at.scale_bytes,
                                at.scale_bytes);
                    uint8_t* codes_at = group + at.codes_at(columns) + column * kQuad;
                    const uint8_t* from = own.get() + g * at.group;
                    for (int64_t k = 0; k < at.inputs(g);
                         k += 32 / at.bits, codes_at += columns * kQuad) {
                        uint8_t word[kQuad];
                        for (int i = 0; i < kQuad; ++i)
                            word[kByteOrder[i]] = static_cast<uint8_t>(
                                from[k + i] | (at.bits == 4 ? from[k + kQuad + i] << 4 : 0));
                        std::memcpy(codes_at, word, sizeof word);
                    }
                }
            }
        });
}

template <int kKind>
void unpack(void* out, const void* weight, const int64_t* ids, int64_t count, FloatLayout at,
            const float* table, int32_t dtype) {
    run_workers(count, count * at.width >= kParallelProducts, [=](WorkItems& items) {
        const Decoder<kKind> own(table);
        std::unique_ptr<float[]> numbers(new float[at.filled() + kLanes]());
        for (int64_t i; items.next(&i);) {
            const int64_t panel = ids[i] / kPanel, columns = at.columns(panel),
                          column = ids[i] % kPanel;
            const uint8_t* own_panel = static_cast<const uint8_t*>(weight) + at.panel_at(panel);
            const int64_t tile = column / kLanes * kLanes, lane = column % kLanes;
            const float factor =
                at.factor_bytes ? load(reinterpret_cast<const float*>(own_panel) + tile)[lane] : 1;
            for (int64_t g = 0; g < at.groups(); ++g) {
                const uint8_t* group = own_panel + at.group_at(g, columns);
                const float scale = at.load_scales(group, tile)[lane] * factor;
                const uint8_t* codes = group + at.codes_at(columns) + column * kQuad;
                for (int64_t k = 0; k < at.inputs(g); ++k) {
                    const uint32_t code = codes[at.byte_of(k, columns)] >> at.shift_of(k);
                    numbers[g * at.group + k] =
                        scale * own.decode_float(Words{} + (at.bits == 4 ? code & 15 : code))[0];
                }
            }
            write_numbers(out, i * at.width, numbers.get(), at.width, dtype);
        }
    });
}

// --- products
// -----------------------------------------------------------------------------------------------

// Rows of x, bfloat16 or float32.
template <typename T>
struct Inputs {
    const T* from;
    int64_t stride;
};

// Per-thread state for multiplying rows by panels.
template <typename T, int kKind>
class Worker {
public:
    Worker(const Product& p, int32_t dtype, Inputs<T> x, FloatFormat format,
           const Decoder<kKind>& decoder)
        : results_(p, dtype),
          x_(x),
          at_(p.out, p.in, format),
          decoder_(decoder),
          decoded_(make_buffer<T>(kLargestGroup * kPanel)),
          totals_(make_buffer<float>(kRowsAtOnce * kPanel)) {}

    void multiply(const void* weight, int64_t panel, int64_t first, int64_t last) const {
        const int64_t columns = at_.columns(panel);
        const uint8_t* panel_start = static_cast<const uint8_t*>(weight) + at_.panel_at(panel);
        const uint8_t* ahead = panel_start + kFetchAhead;
        for (int64_t from = first; from < last; from += kRowsAtOnce) {
            const int64_t rows = std::min(kRowsAtOnce, last - from);
            std::memset(totals_.get(), 0, rows * kPanel * sizeof(float));
            for (int64_t g = 0; g < at_.groups(); ++g) {
                const uint8_t* group = panel_start + at_.group_at(g, columns);
                const uint8_t* next = ahead + at_.group_at(g, columns);
                for (int64_t at = 0; at < at_.codes_at(columns); at += kCacheLine)
                    __builtin_prefetch(next + at, 0, 2);
                const uint8_t* codes = group + at_.codes_at(columns);
                if constexpr (!kWholePanels && std::is_same_v<T, float>) {
                    add_tiles(group, codes, columns, g, from, rows);
                    continue;
                }
                decode<kKind>(decoded_.get(), codes, columns, 0, columns, at_.inputs(g),
                              next + at_.codes_at(columns), decoder_);
                add_group(group, columns, g, from, rows);
            }
            if (at_.factor_bytes)
                multiply_totals(reinterpret_cast<const float*>(panel_start), columns, rows);
            write(panel, from, rows);
        }
    }

    void fetch_first(const void* weight, int64_t panel) const {
        const uint8_t* from = static_cast<const uint8_t*>(weight) + at_.panel_at(panel);
        for (int64_t line = 0; line < std::min(kFetchAhead, at_.columns(panel) * at_.row_bytes());
             line += kCacheLine)
            __builtin_prefetch(from + line, 0, 2);
    }

private:
    static constexpr int64_t kEach = Units<T>::kNumbers;

    // A single row times a group of a whole panel, decoded in registers.
    void add_single(const uint8_t* scales, const uint8_t* codes, const float* x,
                    int64_t inputs) const {
#if defined(__AVX2__) && !defined(__AVX512BW__)
        if constexpr (kKind == kE4M3)
            if (subnormals_ && add_shifted(scales, codes, x, inputs)) return;
#endif
        Floats sums[1][kTiles] = {};
        for (int64_t k = 0; k < inputs; k += kQuad, codes += kPanel * kQuad)
#pragma GCC unroll 4
            for (int c = 0; c < kTiles; ++c) {
                __builtin_prefetch(codes + kFetchAhead + c * sizeof(Words), 0, 2);
                Floats numbers[kQuad];
                numbers_of(numbers, load_vector<Words>(codes + c * sizeof(Words)), decoder_);
#pragma GCC unroll 4
                for (int i = 0; i < kQuad; ++i)
                    sums[0][c] = sums[0][c] + spread(x[k + i]) * numbers[i];
            }
        add_scaled<kTiles>(sums, scales, 0, 0, 1);
    }

#if defined(__AVX2__) && !defined(__AVX512BW__)
    // The same with 15 instructions for 32 codes instead of 28, where products with subnormal
    // numbers take no longer than others. Powers of two in x and in the sums make up for the bias.
    // Returns false if a code is NaN.
    bool add_shifted(const uint8_t* scales, const uint8_t* codes, const float* x,
                     int64_t inputs) const {
        constexpr float kUp = 0x1p80f, kBack = 0x1p40f;
        float own[kLargestGroup];
        for (int64_t k = 0; k < inputs; ++k) own[k] = x[k] * kUp;
        __m256 sums[2 * kTiles] = {};
        __m256i largest = _mm256_setzero_si256();
        for (int64_t k = 0; k < inputs; k += kQuad, codes += kPanel * kQuad)
#pragma GCC unroll 8
            for (int c = 0; c < 2 * kTiles; ++c) {
                if (c % 2 == 0) __builtin_prefetch(codes + kFetchAhead + c * 32, 0, 2);
                const auto* from = reinterpret_cast<const __m256i*>(codes) + c;
                const __m256i word = _mm256_loadu_si256(from);
                largest = _mm256_max_epi8(largest, word);
                sums[c] += shift_byte<kByteOrder[0]>(word) * _mm256_set1_ps(own[k]);
                sums[c] += shift_byte<kByteOrder[1]>(word) * _mm256_set1_ps(own[k + 1]);
                sums[c] += shift_byte<kByteOrder[2]>(word) * _mm256_set1_ps(own[k + 2]);
                sums[c] += shift_byte<kByteOrder[3]>(word) * _mm256_set1_ps(own[k + 3]);
            }
        const __m256i nan = _mm256_cmpeq_epi8(largest, _mm256_set1_epi8(0x7f));
        if (!_mm256_testz_si256(nan, nan)) return false;
        Floats totals[1][kTiles];
        for (int c = 0; c < kTiles; ++c)
            totals[0][c] = {sums[2 * c] * kBack, sums[2 * c + 1] * kBack};
        add_scaled<kTiles>(totals, scales, 0, 0, 1);
        return true;
    }
#endif

    // Decodes a group tile by tile, and multiplies each by all rows while it is in the cache.
    void add_tiles(const uint8_t* scales, const uint8_t* codes, int64_t columns, int64_t group,
                   int64_t first, int64_t rows) const {
        const int64_t begin = group * at_.group;
        const float* x = reinterpret_cast<const float*>(x_.from) + first * x_.stride + begin;
        const float* opened = reinterpret_cast<const float*>(decoded_.get());
        if (Decoder<kKind>::kBits == 8 && rows == 1 && columns == kPanel &&
            begin + at_.inputs(group) <= at_.width)
            return add_single(scales, codes, x, at_.inputs(group));
        for (int64_t column = 0; column < columns; column += kLanes) {
            decode<kKind>(decoded_.get(), codes, columns, column, kLanes, at_.inputs(group),
                          codes + kFetchAhead + column * kQuad, decoder_);
            in_even_blocks<kBlockRows>(rows, [&](auto count, int64_t row, int64_t, int64_t) {
                constexpr int R = decltype(count)::value;
                Floats sums[R][1] = {};
                multiply_opened<R>(sums, x + row * x_.stride, x_.stride, opened,
                                   std::min(at_.group, at_.width - begin), Prefetch());
                add_scaled<1>(sums, scales, row, column, R);
            });
        }
    }

    // Adds the products with the decoded group to the totals [row][column].
    void add_group(const uint8_t* scales, int64_t columns, int64_t group, int64_t first,
                   int64_t rows) const {
        const int64_t begin = group * at_.group, inputs = std::min(at_.group, at_.width - begin);
        const int64_t units = (inputs + kEach - 1) / kEach;
        const T* x = x_.from + first * x_.stride + begin;
#if defined(TILE_REGISTERS)
        if constexpr (kTiled<T>)
            if (rows >= kTiledRows) return add_in_tiles(scales, columns, x, rows, units);
#endif
        in_even_blocks<kRowsOf<T>>(rows, [&](auto count, int64_t row, int64_t, int64_t) {
            constexpr int R = decltype(count)::value;
            constexpr int C = kWholePanels ? kTiles : kBlockTiles<R>;
            if (columns == kPanel) {
                for (int64_t c = 0; c < kPanel; c += C * kLanes)
                    add_block<R, C>(scales, columns, x, row, c, units);
                return;
            }
            for (int64_t c = 0; c < columns; c += kLanes)
                add_block<R, 1>(scales, columns, x, row, c, units);
        });
    }

    template <int R, int C>
    void add_block(const uint8_t* scales, int64_t columns, const T* x, int64_t row, int64_t column,
                   int64_t units) const {
        Floats sums[R][C] = {};
        const T* tiles[C];
        for (int c = 0; c < C; ++c) tiles[c] = decoded_.get() + (column + c * kLanes) * kEach;
        if constexpr (std::is_same_v<T, float>)
            multiply_wide<float, R, C>(sums, x + row * x_.stride, x_.stride, tiles, columns, units,
                                       Prefetch());
        else
            ::multiply<T, R, C>(sums, x + row * x_.stride, x_.stride, tiles, columns * kEach,
                                units, Prefetch());
        add_scaled<C>(sums, scales, row, column, R);
    }

    template <int C>
    void add_scaled(const Floats (*sums)[C], const uint8_t* scales, int64_t row, int64_t column,
                    int64_t rows) const {
        for (int c = 0; c < C; ++c) {
            const Floats scale = at_.load_scales(scales, column + c * kLanes);
            for (int64_t r = 0; r < rows; ++r) {
                float* total = totals_.get() + (row + r) * kPanel + column + c * kLanes;
                ::store(total, load(total) + sums[r][c] * scale);
            }
        }
    }

#if defined(TILE_REGISTERS)
    void add_in_tiles(const uint8_t* scales, int64_t columns, const T* x, int64_t rows,
                      int64_t units) const {
        for (int64_t row = 0; row < rows; row += kTileRows)
            for (int64_t column = 0; column < columns; column += kLanes) {
                Floats sums[kTileRows][1];
                const int64_t count = std::min<int64_t>(kTileRows, rows - row);
                const BFloat16* tiles[1] = {decoded_.get() + column * kEach};
                multiply_in_tiles<1, 1>(reinterpret_cast<float*>(sums), sizeof sums[0], count,
                                        x + row * x_.stride, x_.stride, tiles, columns * kEach,
                                        units, [](int64_t, int64_t) {});
                add_scaled<1>(sums, scales, row, column, count);
            }
    }
#endif

    void multiply_totals(const float* factors, int64_t columns, int64_t rows) const {
        for (int64_t column = 0; column < columns; column += kLanes) {
            const Floats own = load(factors + column);
            for (int64_t row = 0; row < rows; ++row) {
                float* total = totals_.get() + row * kPanel + column;
                ::store(total, load(total) * own);
            }
        }
    }

    void write(int64_t panel, int64_t first, int64_t rows) const {
        const auto* totals = reinterpret_cast<const Floats(*)[kTiles]>(totals_.get());
        results_.write(first, panel * kPanel, totals, rows, at_.rows - panel * kPanel);
    }

    const ResultWriter results_;
    const Inputs<T> x_;
    const FloatLayout at_;
    const Decoder<kKind> decoder_;
    const Buffer<T> decoded_;
    const Buffer<float> totals_;
    const FlushDenormals flushed_;
    const bool subnormals_ = processor::multiplies_subnormals();
};

// --- one function per kind, chosen by number
// ----------------------------------------------------------------

template <typename Body>
void with_kind(int32_t kind, Body body) {
    kind == kE4M3   ? body(std::integral_constant<int, kE4M3>())
    : kind == kE5M2 ? body(std::integral_constant<int, kE5M2>())
                    : body(std::integral_constant<int, kTabled>());
}

// Calls body(rows of x): widened to float32, except where bfloat16 is multiplied.
template <typename Body>
void with_inputs(const Product& p, int64_t rows, int32_t dtype, Body body) {
    with_dtype(dtype, [&](auto number) {
        const WideRows<decltype(number)> x(p, rows);
        body(Inputs<Input<decltype(number)>>{x.from, x.stride});
    });
}

// The decoder for x of a dtype: table entries are rounded for bfloat16.
template <int kKind>
Decoder<kKind> decoder_for(const float* table, int32_t dtype) {
    const Decoder<kKind> decoder(table);
    if constexpr (kKind == kTabled)
        if (dtype == kBFloat16) return decoder.rounded();
    return decoder;
}

// Calls body(function that makes a worker) for the element type of x and the kind of code.
template <typename Body>
void with_worker(const Product& p, int64_t rows, const FloatFormat& format, int32_t dtype,
                 Body body) {
    with_inputs(p, rows, dtype, [&](auto x) {
        with_kind(format.kind, [&](auto kind) {
            using Own =
                Worker<std::remove_const_t<std::remove_pointer_t<decltype(x.from)>>, kind()>;
            const auto decoder = decoder_for<kind()>(format.table, dtype);
            body([&] { return Own(p, dtype, x, format, decoder); });
        });
    });
}

void any_unpack(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width,
                int64_t rows, FloatFormat format, int32_t dtype) {
    with_kind(format.kind, [&](auto kind) {
        unpack<kind()>(out, weight, ids, count, FloatLayout(rows, width, format), format.table,
                       dtype);
    });
}

void any_product(const Product& p, FloatFormat format, int32_t dtype) {
    const FloatLayout at(p.out, p.in, format);
    with_worker(p, p.rows, format, dtype,
                [&](auto make) { multiply_panels(p, at.panels(), make); });
}

void any_grouped(const Product& p, const int64_t* counts, int64_t groups, FloatFormat format,
                 int32_t dtype) {
    const FloatLayout at(p.out, p.in, format);
    const GroupedRows own(counts, groups);
    with_worker(p, own.rows, format, dtype,
                [&](auto make) { multiply_groups(p, own, at.panels(), at.bytes(), make); });
}

}  // namespace

extern const FloatOps TABLE(floats_);
const FloatOps TABLE(floats_) = {pack_codes, any_unpack, any_product, any_grouped};
