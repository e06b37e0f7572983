// GEMM with GGUF blocks; compiled once per instruction set.
//
// Panels are those of linear.cpp, with the block formats of superblock_kinds.h. Rows of x are
// quantized (quantized_rows.h): 16 bits with a scale per 256 inputs, or eight bits with a scale per
// group of the weight. Sums within a group are exact, and groups are added in order, so results are
// bitwise batch-invariant on every instruction set. With few rows, codes are extracted where they
// are multiplied. With more, 256 inputs of a panel are unpacked into the core's cache for all rows.
#define PAIRED_VECTORS
#include "cpu/quant/superblocks.h"

#include <limits>
#include <memory>

#include "cpu/variant.h"
#include "cpu/gemm/opened_tile.h"
#include "cpu/quant/byte_spans.h"
#include "cpu/quant/span_totals.h"
#include "cpu/quant/superblock_panels.h"

namespace {

// True if prefetches are interleaved with products. Otherwise the compiler moves all prefetches of
// a unit before its products, and they exceed the outstanding misses of a core. Measured: below
// four bits arithmetic dominates; at eight bits there are as many lines as products.
template <typename Kind>
constexpr bool kInterleavesPrefetch =
    Kind::kBytes * 8 >= 4 * Kind::kInputs && Kind::kBytes * 8 < 8 * Kind::kInputs;
// Prefetch distance in bytes. Small blocks are read sequentially. Large blocks are not (scales are
// read first and may be stored last), so the whole block must be present.
template <typename Kind>
constexpr int64_t kFetchAhead = Kind::kInputs != kUnit       ? kPanel * Kind::kBytes + 10240
                                : kInterleavesPrefetch<Kind> ? 6144
                                                             : 2048;
// True if 8-bit x is multiplied as bytes.
constexpr bool kAsBytes = kAddsBytes || kMultipliesSmallBytes;
// Layout of x for packed and for unpacked panels.
template <typename Kind, int kBits>
constexpr IntegerLayout kPackedLayout = kBits == 8 && kAsBytes ? IntegerLayout::kByte
                                        : kMultipliesBytes           ? IntegerLayout::kTwoBytes
                                                                     : IntegerLayout::kPairs;
template <typename Kind, int kBits>
constexpr IntegerLayout kUnpackedLayout =
    kBits == 8 && kAsBytes ? IntegerLayout::kByte : IntegerLayout::kPairs;
// Rows per block of a packed panel. Each count is compiled for each kind, so there are few.
template <int kBits>
constexpr int kPackedRows = kMultipliesBytes || (kAsBytes && kBits == 8) ? 3 : 1;
// Maximum rows for packed panels (measured). Scales of a few bits make repeated passes expensive;
// with float16 scales and 8-bit x unpacking gains nothing.
template <typename Kind, int kBits>
constexpr int64_t kMaxPackedRows = !kMultipliesBytes        ? kPackedRows<kBits>
                                   : kBits == 16            ? (Kind::kGroup == kUnit ? 64 : 24)
                                   : Kind::kInputs == kUnit ? std::numeric_limits<int64_t>::max()
                                                            : 6;
// Rows per block of an unpacked panel. With 8-bit x, totals stay in registers too.
template <IntegerLayout kLayout>
constexpr int kUnpackedRows = kWholePanels && kLayout == IntegerLayout::kByte ? 3 : kBlockRows;
// Tiles per block of an unpacked panel.
constexpr int kUnpackedTiles = kWholePanels ? kTiles : 1;

// --- packing and unpacking

// Packs one panel's part of rows [first, first + source.rows).
template <typename Kind>
void pack_panel(uint8_t* to, BlockRows source, int64_t panel, int64_t first, Layout<Kind> at) {
    constexpr int64_t halves = num_halves<Kind>(), words = (Kind::kBytes - 2 * halves) / 4;
    const int64_t columns = at.columns(panel);
    const int64_t begin = std::max(first, panel * kPanel),
                  end = std::min(first + source.rows, panel * kPanel + columns);
    for (int64_t b = 0; b < at.blocks(); ++b) {
        uint8_t* block = to + at.panel_at(panel) + b * columns * Kind::kBytes;
        for (int64_t row = begin; row < end; ++row) {
            const uint8_t* from =
                source.from + (row - first) * source.row_stride + b * Kind::kBytes;
            const int64_t column = row - panel * kPanel;
            for (int64_t h = 0; h < halves; ++h)
                std::memcpy(block + (h * columns + column) * 2, from + Kind::kHalves[h], 2);
            uint8_t* target = block + halves * columns * 2 + column * 4;
            for (int64_t w = 0; w < words; ++w)
                std::memcpy(target + w * columns * 4, from + Kind::kWordsAt + w * 4, 4);
        }
    }
}

template <typename Kind>
void pack(void* to, BlockRows source, int64_t first, int64_t rows) {
    const Layout<Kind> at = {rows, source.blocks * Kind::kInputs};
    const int64_t begin = first / kPanel,
                  count = source.rows ? (first + source.rows - 1) / kPanel - begin + 1 : 0;
    run_workers(count, source.rows * at.width >= kParallelProducts, [=](WorkItems& items) {
        for (int64_t i; items.next(&i);)
            pack_panel<Kind>(static_cast<uint8_t*>(to), source, begin + i, first, at);
    });
}

// Calls body(unit, its 32 numbers) for one row of a weight.
template <typename Kind, typename Body>
void for_units(const void* weight, int64_t row, Layout<Kind> at, Body body) {
    const int64_t panel = row / kPanel, tile = row % kPanel / kLanes, lane = row % kLanes;
    const PackedPanel<Kind, IntegerLayout::kPairs> reader = {
        static_cast<const uint8_t*>(weight) + at.panel_at(panel), at.columns(panel)};
    for (int64_t unit = 0; unit < at.units(); ++unit) {
        float numbers[kUnit];
#pragma GCC unroll 1
        for (int q = 0; q < kQuads; ++q) {
            const int part = static_cast<int>(q * kQuad / Kind::kGroup);
            const Floats scales = reader.scale(unit, tile, part) * reader.factor(unit, tile, 0),
                         minima = reader.minimum(unit, tile, part) *
                                  reader.factor(unit, tile, Kind::kHasMin);
            const float scale = scales[lane], minimum = minima[lane];
            const uint32_t word = reader.quad(unit, tile, q)[lane];
            for (int j = 0; j < kQuad; ++j)
                numbers[q * kQuad + j] =
                    scale * (static_cast<int32_t>(word >> 8 * j & 0xff) - reader.zero()) - minimum;
        }
        body(unit, numbers);
    }
}

template <typename Kind>
void unpack(void* out, const void* weight, const int64_t* ids, int64_t count, Layout<Kind> at,
            int32_t dtype) {
    run_workers(count, count * at.width >= kParallelProducts, [=](WorkItems& items) {
        for (int64_t i; items.next(&i);)
            for_units(weight, ids[i], at, [&](int64_t unit, const float* numbers) {
                write_numbers(out, i * at.width + unit * kUnit, numbers, kUnit, dtype);
            });
    });
}

// --- products

// `add_part` for bytes of x and narrow registers. Without instructions that add products of bytes
// to 32 bits, they are added to 16 bits, and those to the sums as often as they have to be.
template <typename Reader, int R, int C>
inline __attribute__((always_inline)) void add_bytes_of_part(
    Ints (&sums)[R][C], const QuantizedRows& rows, int64_t row, const Reader& reader, int64_t unit,
    int64_t tile, int part, const uint8_t* fetched) {
    constexpr int count = Reader::kGroup / kQuad;
    constexpr int together = std::min(count, pairs_in_half(Reader::kMaxCode));
    const Words ones = Words{} + 0x00010001;
    const int8_t* x = &rows.low[(unit * rows.count + row) * kUnit + part * Reader::kGroup];
    if constexpr (kAddsBytes) {
#pragma GCC unroll 8
        for (int step = 0; step < count; ++step)
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) {
                const Words own = reader.step(unit, tile + c, part * count + step);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r)
                    sums[r][c] =
                        add_bytes(sums[r][c], spread_word(x + r * kUnit + step * kQuad), own);
            }
    } else {
#pragma GCC unroll 4
        for (int begin = 0; begin < count; begin += together) {
            Words halves[R][C];
#pragma GCC unroll 8
            for (int step = begin; step < begin + together; ++step)
#pragma GCC unroll 4
                for (int c = 0; c < C; ++c) {
                    const Words own = reader.step(unit, tile + c, part * count + step);
#pragma GCC unroll 8
                    for (int r = 0; r < R; ++r) {
                        const Words numbers = spread_word(x + r * kUnit + step * kQuad);
                        const Words products = multiplies_signed(Reader::kMaxCode)
                                                   ? multiply_signed_bytes(numbers, own)
                                                   : multiply_bytes(numbers, own);
                        halves[r][c] =
                            step == begin ? products : add_halves(halves[r][c], products);
                    }
                }
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
                for (int c = 0; c < C; ++c) sums[r][c] = add_pairs(sums[r][c], halves[r][c], ones);
        }
    }
    if constexpr (C == kTiles)
        for (int line = part * Reader::kLines * count / kQuads;
             line < (part + 1) * Reader::kLines * count / kQuads; ++line)
            __builtin_prefetch(fetched + line * kCacheLine, 0, 2);
}

// Adds the products of R rows of x and C tiles for the codes that share a scale.
template <typename Reader, int R, int C>
inline __attribute__((always_inline)) void add_part(Ints (&sums)[R][C], Ints (&high)[R][C],
                                                    const QuantizedRows& rows, int64_t row,
                                                    const Reader& reader, int64_t unit,
                                                    int64_t tile, int part,
                                                    const uint8_t* fetched) {
    constexpr int inputs = kAtOnce<Reader::kLayout>, count = Reader::kGroup / inputs,
                  of_unit = kUnit / inputs;
    if constexpr (kMultipliesSmallBytes && Reader::kLayout == IntegerLayout::kByte)
        return add_bytes_of_part(sums, rows, row, reader, unit, tile, part, fetched);
#pragma GCC unroll 16
    for (int step = 0; step < count; ++step) {
        const int i = part * count + step;
        Words own[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) own[c] = reader.step(unit, tile + c, i);
        add_products<Reader::kLayout>(sums, high, rows,
                                      (unit * rows.count + row) * kUnit + i * inputs, kUnit, own);
        if constexpr (C == kTiles && Reader::kLines > 0) {
#pragma GCC unroll 8
            for (int line = i * Reader::kLines / of_unit; line < (i + 1) * Reader::kLines / of_unit;
                 ++line) {
                if constexpr (kInterleavesPrefetch<typename Reader::KindType>)
                    prefetch_between(fetched + line * kCacheLine, sums[0]);
                else
                    __builtin_prefetch(fetched + line * kCacheLine, 0, 2);
            }
        }
    }
}

// Adds rows of x from `row` times the tiles from `tile`, for one span. Prefetches as much as it
// reads of a packed panel, else `lines` lines per unit. Not inlined: it is shared by all element
// types.
template <int kBits, typename Reader, int R, int C>
__attribute__((noinline)) void add_span(Floats (&totals)[R][C], const QuantizedRows& rows,
                                        int64_t row, const Reader& reader, int64_t span,
                                        int64_t tile, const uint8_t* fetched, int64_t lines = 0) {
    constexpr int parts = kUnit / Reader::kGroup;
    const int64_t units = rows.layout.width / kUnit;
    Floats found[R][C];  // not `totals`, which would be stored after each unit
    std::memset(found, 0, sizeof found);
    if constexpr (kBits == 8 && !kDelaysFactors) std::memcpy(found, totals, sizeof found);
    for (int64_t unit = span * kSpan; unit < std::min(units, (span + 1) * kSpan); ++unit) {
#pragma GCC unroll 2
        for (int part = 0; part < parts; ++part) {
            Ints sums[R][C], high[R][C] = {};
            for (int r = 0; r < R; ++r) {
                const Ints start =
                    Ints{} -
                    sum_of<kBits, parts>(rows, row + r, unit * parts + part) * reader.zero();
                for (int c = 0; c < C; ++c) sums[r][c] = start;
            }
            add_part(sums, high, rows, row, reader, unit, tile, part, fetched);
            for (int c = 0; c < C; ++c) {
                const Floats scale = reader.scale(unit, tile + c, part),
                             minimum = reader.minimum(unit, tile + c, part);
                for (int r = 0; r < R; ++r) {
                    const Floats sum =
                        convert<Floats>(combined<Reader::kLayout>(sums[r][c], high[r][c]));
                    const float x_scale =
                        kBits == 8 ? rows.scales[(unit * parts + part) * rows.count + row + r] : 1;
                    if constexpr (kDelaysFactors) {
                        found[r][c] += kBits == 8 ? sum * scale * x_scale : sum * scale;
                    } else {
                        found[r][c] += sum * (kBits == 8 ? scale * x_scale : scale);
                        if constexpr (Reader::kHasMin)
                            found[r][c] -= minimum * scaled_sum<kBits, parts>(
                                                         rows, row + r, unit * parts + part);
                    }
                }
            }
        }
        for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(fetched + line * 64, 0, 2);
        fetched += ((C == kTiles ? Reader::kLines : 0) + lines) * 64;
    }
    if constexpr (kDelaysFactors)
        return finish_span<kBits>(totals, found, rows, row, reader, span, tile);
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c)
            totals[r][c] =
                kBits == 8 ? found[r][c]
                           : totals[r][c] + found[r][c] * rows.scales[span * rows.count + row + r];
}

// The same for one row of x in bytes.
template <typename Kind, typename Reader, int C>
__attribute__((noinline)) void add_byte_span(Floats (&totals)[1][C], const QuantizedRows& rows,
                                             int64_t row, const Reader& reader, int64_t span,
                                             int64_t tile, const uint8_t* fetched) {
    Floats found[1][C] = {};
    const ByteSpan<Kind, C> own(rows, row, reader, span, tile);
    own.add(found[0], fetched + tile / C * ByteSpan<Kind, C>::kSpanLines * kCacheLine);
    finish_span<8>(totals, found, rows, row, reader, span, tile);
}

// Splits rows into blocks, the largest first, and calls body(Count<R>(), first row).
template <int R, typename Body>
void in_blocks(int64_t first, int64_t last, Body body) {
    for (; last - first >= R; first += R) body(Count<R>(), first);
    if constexpr (R > 1) in_blocks<R / 2>(first, last, body);
}

// Rows of x times a whole packed panel. A single block prefetches within this panel, several
// prefetch the next panel.
template <int kBits, typename Reader>
void multiply_packed(const ResultWriter& results, int64_t column, int64_t left,
                     const QuantizedRows& rows, const Reader& reader, int64_t first, int64_t last,
                     int64_t panel_bytes) {
    const int64_t spans = (rows.layout.width / kUnit + kSpan - 1) / kSpan;
    constexpr int kMaxRows = kPackedRows<kBits>;
    const int64_t blocks = (last - first + kMaxRows - 1) / kMaxRows;
    const uint8_t* ahead =
        reader.panel + (blocks == 1 ? kFetchAhead<typename Reader::KindType> : panel_bytes);
    in_even_blocks<kMaxRows>(last - first, [&](auto count, int64_t row, int64_t, int64_t) {
        using Kind = typename Reader::KindType;
        constexpr int R = decltype(count)::value;
        constexpr bool own_spans = kHasByteSpans<Kind, Reader::kLayout, R>;
        constexpr int C = own_spans ? kByteTiles<Kind> : kBlockTiles<R>;
        Floats totals[kTiles / C][R][C];
        std::memset(totals, 0, sizeof totals);
        for (int64_t span = 0; span < spans; ++span) {
            const uint8_t* fetched = ahead + span * Reader::kLines * 64 * kSpan;
            for (int at = 0; at < kTiles / C; ++at)
                if constexpr (own_spans)
                    add_byte_span<Kind>(totals[at], rows, first + row, reader, span, at * C,
                                        fetched);
                else
                    add_span<kBits>(totals[at], rows, first + row, reader, span, at * C, fetched,
                                    C < kTiles && at == 0 ? Reader::kLines : 0);
        }
        for (int at = 0; at < kTiles / C; ++at)
            results.write(first + row, column + at * C * kLanes, totals[at], R,
                          left - at * C * kLanes);
    });
}

// A panel that is unpacked span by span. `unpack` is called with the panel, its columns, and the
// first and the number of units.
template <typename Unpacked>
struct SpanSource {
    const uint8_t* panel;
    int64_t columns, span_bytes;
    void (*unpack)(Unpacked&, const uint8_t*, int64_t, int64_t, int64_t);
};

template <typename Kind, IntegerLayout kLayout>
SpanSource<UnpackedPanelOf<Kind, kLayout>> span_source(const uint8_t* panel, int64_t columns) {
    using Unpacked = UnpackedPanelOf<Kind, kLayout>;
    using Reader = PackedPanel<Kind, kLayout>;
    return {panel, columns, Reader{panel, columns}.span_bytes(),
            [](Unpacked& to, const uint8_t* from, int64_t width, int64_t begin, int64_t units) {
                to.unpack_span(Reader{from, width}, begin, units);
            }};
}

// Rows of x times one panel, unpacked span by span. `totals` holds all rows.
template <int kBits, typename Unpacked>
void multiply_unpacked(const ResultWriter& results, int64_t column, int64_t left,
                       const QuantizedRows& rows, const SpanSource<Unpacked>& source,
                       Unpacked& unpacked, float* totals, int64_t first, int64_t last) {
    // Calls body(totals [R][C], first row, first tile).
    const auto for_blocks = [&](auto body) {
        if (kWholePanels && source.columns < kPanel)  // a single panel is not worth more code
            for (int64_t row = first; row < last; ++row)
                for (int64_t tile = 0; tile * kLanes < source.columns; ++tile)
                    body(reinterpret_cast<Floats(&)[1][1]>(
                             totals[(row - first) * kPanel + tile * kLanes]),
                         row, tile);
        else
            in_blocks<kUnpackedRows<Unpacked::kLayout>>(first, last, [&](auto count, int64_t row) {
                constexpr int R = decltype(count)::value;
                float* own = totals + (row - first) * kPanel;
                for (int64_t tile = 0; tile * kLanes < source.columns; tile += kUnpackedTiles)
                    body(reinterpret_cast<Floats(&)[R][kUnpackedTiles]>(own[tile * kLanes * R]),
                         row, tile);
            });
    };
    std::memset(totals, 0, (last - first) * kPanel * sizeof(float));
    const int64_t units = rows.layout.width / kUnit,
                  blocks = (last - first) / kUnpackedRows<Unpacked::kLayout> + 1;
    for (int64_t span = 0; span * kSpan < units; ++span) {
        source.unpack(unpacked, source.panel, source.columns, span * kSpan,
                      std::min(kSpan, units - span * kSpan));
        // Each block prefetches its share of the next span.
        const int64_t bytes = source.span_bytes, lines = bytes / 64 / kSpan / blocks + 1;
        const uint8_t* ahead = source.panel + (span + 1) * bytes;
        for_blocks([&](auto& sums, int64_t row, int64_t tile) {
            add_span<kBits>(sums, rows, row, unpacked, span, tile, ahead, tile == 0 ? lines : 0);
            if (tile == 0) ahead += lines * kSpan * 64;
        });
    }
    for_blocks([&](auto& sums, int64_t row, int64_t tile) {
        constexpr int64_t R = sizeof sums / sizeof sums[0];
        results.write(row, column + tile * kLanes, sums, R, left - tile * kLanes);
    });
}

// Per-thread state for multiplying rows by panels.
template <typename Kind, int kBits>
class Worker {
public:
    Worker(const Product& p, int32_t dtype, const QuantizedRows& rows)
        : results_(p, dtype), rows_(rows), at_{p.out, p.in} {}

    void multiply(const void* weight, int64_t panel, int64_t first, int64_t last) {
        const int64_t columns = at_.columns(panel), column = panel * kPanel,
                      left = at_.rows - column;
        const uint8_t* panel_start = static_cast<const uint8_t*>(weight) + at_.panel_at(panel);
        const bool fits = kPackedLayout<Kind, kBits> == IntegerLayout::kPairs ? rows_.in_pairs
                                                                              : rows_.in_bytes;
        if (fits && last - first <= kMaxPackedRows<Kind, kBits> && columns == kPanel) {
            const PackedPanel<Kind, kPackedLayout<Kind, kBits>, kPanel> stored = {panel_start,
                                                                                  kPanel};
            multiply_packed<kBits>(results_, column, left, rows_, stored, first, last,
                                   columns * at_.row_bytes());
            return;
        }
        if (!unpacked_) {
            unpacked_.reset(new Unpacked);
            totals_ = make_buffer<float>(kRowsAtOnce * kPanel);
        }
        const auto source =
            span_source<Kind, kUnpackedLayout<Kind, kBits>>(panel_start, columns);
        for (int64_t at = first; at < last; at += kRowsAtOnce)
            multiply_unpacked<kBits>(results_, column, left, rows_, source, *unpacked_,
                                     totals_.get(), at, std::min(last, at + kRowsAtOnce));
    }

    void fetch_first(const void* weight, int64_t panel) const {
        const uint8_t* from = static_cast<const uint8_t*>(weight) + at_.panel_at(panel);
        for (int64_t line = 0;
             line < std::min(kFetchAhead<Kind>, at_.columns(panel) * at_.row_bytes());
             line += kCacheLine)
            __builtin_prefetch(from + line, 0, 2);
    }

private:
    using Unpacked = UnpackedPanelOf<Kind, kUnpackedLayout<Kind, kBits>>;
    const ResultWriter results_;
    const QuantizedRows& rows_;
    const Layout<Kind> at_;
    std::unique_ptr<Unpacked> unpacked_;
    Buffer<float> totals_;
};

// --- one function per kind of block, chosen by number

int32_t any_pack(void* to, BlockRows source, int64_t first, int64_t rows, int32_t kind) {
    return with_kind(kind,
                     [&](auto block_kind) { pack<decltype(block_kind)>(to, source, first, rows); });
}

void any_unpack(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width,
                int64_t rows, int32_t kind, int32_t dtype) {
    with_kind(kind, [&](auto block_kind) {
        unpack(out, weight, ids, count, Layout<decltype(block_kind)>{rows, width}, dtype);
    });
}

// Calls body(Kind(), bits of quantized x as a compile-time constant).
template <typename Body>
void with_both(Blocks blocks, Body body) {
    with_kind(blocks.kind, [&](auto block_kind) {
        blocks.x_bits == 8 ? body(block_kind, std::integral_constant<int, 8>())
                           : body(block_kind, std::integral_constant<int, 16>());
    });
}

// Quantized rows of x in the layout of packed panels, of unpacked panels, or both.
template <int kBits, typename Kind>
QuantizedRows rows_for(int64_t count, int64_t max_rows, const Layout<Kind>& at) {
    const bool few = max_rows <= kMaxPackedRows<Kind, kBits>,
               whole = at.columns(at.panels() - 1) == kPanel;
    const bool bytes = kMultipliesBytes ? few || kBits == 8 : kBits == 8 && kAsBytes,
               pairs = kUnpackedLayout<Kind, kBits> == IntegerLayout::kPairs;
    const RowLayout layout = kBits == 8 ? RowLayout{at.width, Kind::kGroup, Kind::kGroup}
                                        : RowLayout{at.width, kSpan * kUnit, kLanes};
    return QuantizedRows(count, layout, kBits, bytes, pairs && (!bytes || !whole), kUnit);
}

void any_product(const Product& p, Blocks blocks, int32_t dtype) {
    with_both(blocks, [&](auto block_kind, auto bits) {
        using Kind = decltype(block_kind);
        const Layout<Kind> at = {p.out, p.in};
        QuantizedRows rows = rows_for<bits()>(p.rows, p.rows, at);
        quantize_rows(rows, p, p.rows, dtype);
        multiply_panels(p, at.panels(), [&] { return Worker<Kind, bits()>(p, dtype, rows); });
    });
}

void any_grouped(const Product& p, const int64_t* counts, int64_t groups, Blocks blocks,
                 int32_t dtype) {
    const GroupedRows own(counts, groups);
    with_both(blocks, [&](auto block_kind, auto bits) {
        using Kind = decltype(block_kind);
        const Layout<Kind> at = {p.out, p.in};
        QuantizedRows rows = rows_for<bits()>(own.rows, own.max_rows, at);
        quantize_rows(rows, p, own.rows, dtype);
        multiply_groups(p, own, at.panels(), at.bytes(),
                        [&] { return Worker<Kind, bits()>(p, dtype, rows); });
    });
}

}  // namespace

extern const SuperblockOps TABLE(superblocks_);
const SuperblockOps TABLE(superblocks_) = {any_pack, any_unpack, any_product, any_grouped};
