// Products with weights that are blocks of GGUF files; compiled once per instruction set.
//
// Panels are those of linear.cpp; what a block looks like in one is said in superblock_kinds.h. A row of x becomes integers
// (integers.h): of sixteen bits with a scale for 256 inputs, or of eight bits with one for the inputs that share a scale of
// the weight. Sums of what shares a scale are exact, and are added in their order, so a result depends on its own row alone,
// however many rows are computed beside it and by which instructions. With few rows codes are taken out of their words where
// they are multiplied; with more, 256 inputs of a panel are opened for all of them, in the core's cache.
#include "superblocks.h"

#include <limits>
#include <memory>

#include "../variant.h"
#include "superblock_panels.h"

namespace {

// Whether lines are fetched between products, as many as have been read. Where they are not, the compiler puts all those of a unit
// before its products, and the core, which waits for only so many at once, comes to these late. As measured: with fewer bits
// arithmetic is what takes the time, with eight there are as many lines as products.
template <typename Kind>
constexpr bool kFetchesBetween = Kind::kBytes * 8 >= 4 * Kind::kInputs && Kind::kBytes * 8 < 8 * Kind::kInputs;
// Bytes between what is read of a panel and what is fetched. Small blocks are read as they lie. A large one is not read from its
// beginning to its end (its scales are wanted first and may lie last), so it must be there as a whole.
template <typename Kind>
constexpr int64_t kFetchAhead = Kind::kInputs != kUnit ? kPanel * Kind::kBytes + 10240 : kFetchesBetween<Kind> ? 6144 : 2048;
// Rows of a block of a panel as it is kept. Each number of them is compiled for each kind of block, so there are few.
constexpr int kFewTogether = kMultipliesBytes ? 3 : 1;
// With more rows, panels are opened; as measured. Scales that are numbers of a few bits make it dearer to go over a panel
// again and again; where they are halves and x is in single bytes nothing is gained by opening.
template <typename Kind, int kBits>
constexpr int64_t kUnopened = !kMultipliesBytes           ? kFewTogether
                              : kBits == 16               ? (Kind::kGroup == kUnit ? 64 : 24)
                              : Kind::kInputs == kUnit    ? std::numeric_limits<int64_t>::max()
                                                          : 6;
// Rows of a block of an opened panel. Of bytes, totals stay in registers beside the sums.
template <Form kForm>
constexpr int kOpenedTogether = kForm == Form::kByte ? 3 : kRows;
// How integers of x lie for panels as they are kept, and for opened ones.
template <int kBits>
constexpr Form kForKept = !kMultipliesBytes ? Form::kPairs : kBits == 8 ? Form::kByte : Form::kTwoBytes;
template <int kBits>
constexpr Form kForOpened = kMultipliesBytes && kBits == 8 ? Form::kByte : Form::kPairs;

// --- packing and unpacking ----------------------------------------------------------------------------------

// One panel's part of rows [first, first + source.rows) of the weight.
template <typename Kind>
void pack_panel(uint8_t* to, BlockRows source, int64_t panel, int64_t first, Layout<Kind> at) {
    constexpr int64_t halves = num_halves<Kind>(), words = (Kind::kBytes - 2 * halves) / 4;
    const int64_t columns = at.columns(panel);
    const int64_t begin = std::max(first, panel * kPanel), end = std::min(first + source.rows, panel * kPanel + columns);
    for (int64_t b = 0; b < at.blocks(); ++b) {
        uint8_t* block = to + at.panel_at(panel) + b * columns * Kind::kBytes;
        for (int64_t row = begin; row < end; ++row) {
            const uint8_t* from = source.from + (row - first) * source.row_stride + b * Kind::kBytes;
            const int64_t column = row - panel * kPanel;
            for (int64_t h = 0; h < halves; ++h) std::memcpy(block + (h * columns + column) * 2, from + Kind::kHalves[h], 2);
            uint8_t* place = block + halves * columns * 2 + column * 4;
            for (int64_t w = 0; w < words; ++w) std::memcpy(place + w * columns * 4, from + Kind::kWordsAt + w * 4, 4);
        }
    }
}

template <typename Kind>
void pack(void* to, BlockRows source, int64_t first, int64_t rows) {
    const Layout<Kind> at = {rows, source.blocks * Kind::kInputs};
    const int64_t begin = first / kPanel, count = source.rows ? (first + source.rows - 1) / kPanel - begin + 1 : 0;
    share_out(count, source.rows * at.width >= kParallelProducts, [=](Pieces& pieces) {
        for (int64_t i; pieces.next(&i);) pack_panel<Kind>(static_cast<uint8_t*>(to), source, begin + i, first, at);
    });
}

// Calls body(unit, its 32 numbers) for one row of a weight.
template <typename Kind, typename Body>
void for_units(const void* weight, int64_t row, Layout<Kind> at, Body body) {
    const int64_t panel = row / kPanel, tile = row % kPanel / kLanes, lane = row % kLanes;
    const Stored<Kind, Form::kPairs> reader = {static_cast<const uint8_t*>(weight) + at.panel_at(panel), at.columns(panel)};
    for (int64_t unit = 0; unit < at.units(); ++unit) {
        float numbers[kUnit];
#pragma GCC unroll 1
        for (int q = 0; q < kQuads; ++q) {
            const int part = static_cast<int>(q * kQuad / Kind::kGroup);
            const float scale = reader.scale(unit, tile, part)[lane], least = reader.least(unit, tile, part)[lane];
            const uint32_t word = reader.quad(unit, tile, q)[lane];
            for (int j = 0; j < kQuad; ++j)
                numbers[q * kQuad + j] = scale * (static_cast<int32_t>(word >> 8 * j & 0xff) - reader.zero()) - least;
        }
        body(unit, numbers);
    }
}

template <typename Kind>
void unpack(void* out, const void* weight, const int64_t* ids, int64_t count, Layout<Kind> at, int32_t dtype) {
    share_out(count, count * at.width >= kParallelProducts, [=](Pieces& pieces) {
        for (int64_t i; pieces.next(&i);)
            for_units(weight, ids[i], at, [&](int64_t unit, const float* numbers) {
                put_numbers(out, i * at.width + unit * kUnit, numbers, kUnit, dtype);
            });
    });
}

// --- products -----------------------------------------------------------------------------------------------

// Fetches a line behind the products that have been added to these sums, and before those that will be.
inline __attribute__((always_inline)) void fetch_between(const uint8_t* line, Ints (&sums)[kTiles]) {
#if defined(__AVX512F__)
    asm volatile("prefetcht1 %4" : "+v"(sums[0]), "+v"(sums[1]), "+v"(sums[2]), "+v"(sums[3]) : "m"(*line));
#else
    __builtin_prefetch(line, 0, 2);
    (void)sums;
#endif
}

// Adds the products of R rows of x and C tiles with codes that share a scale to their sums.
template <typename Reader, int R, int C>
inline __attribute__((always_inline)) void add_part(Ints (&sums)[R][C], Ints (&high)[R][C], const Rows& rows, int64_t row,
                                                    const Reader& reader, int64_t unit, int64_t tile, int part,
                                                    const uint8_t* fetched) {
    constexpr int inputs = kAtOnce<Reader::kForm>, count = Reader::kGroup / inputs, of_unit = kUnit / inputs;
#pragma GCC unroll 16
    for (int step = 0; step < count; ++step) {
        const int i = part * count + step;
        Words own[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) own[c] = reader.step(unit, tile + c, i);
        add_products<Reader::kForm>(sums, high, rows, (unit * rows.count + row) * kUnit + i * inputs, kUnit, own);
        if constexpr (C == kTiles && Reader::kLines > 0)
#pragma GCC unroll 8
            for (int line = i * Reader::kLines / of_unit; line < (i + 1) * Reader::kLines / of_unit; ++line)
                if constexpr (kFetchesBetween<typename Reader::Kept>)
                    fetch_between(fetched + line * kLineBytes, sums[0]);
                else
                    __builtin_prefetch(fetched + line * kLineBytes, 0, 2);
    }
}

// Adds rows of x from `row` on times the tiles of a panel from `tile` on, of one span. What is fetched meanwhile: of a panel
// as it is kept as much as is read, else so many lines for each unit. Not inlined: it is the same for all
// element types.
template <int kBits, typename Reader, int R, int C>
__attribute__((noinline)) void add_span(Floats (&totals)[R][C], const Rows& rows, int64_t row, const Reader& reader,
                                        int64_t span, int64_t tile, const uint8_t* fetched, int64_t lines = 0) {
    constexpr int parts = kUnit / Reader::kGroup;
    const int64_t units = rows.cut.width / kUnit;
    const auto part_sum = [&](int64_t of, int r) { return rows.sums[of * rows.count + row + r]; };
    Floats found[R][C];  // not `totals` themselves, which would be written down after each unit
    std::memset(found, 0, sizeof found);
    if constexpr (kBits == 8) std::memcpy(found, totals, sizeof found);
    for (int64_t unit = span * kSpan; unit < std::min(units, (span + 1) * kSpan); ++unit) {
#pragma GCC unroll 2
        for (int part = 0; part < parts; ++part) {
            Ints sums[R][C], high[R][C] = {};
            int32_t own[R];
            for (int r = 0; r < R; ++r) {
                own[r] = kBits == 8   ? part_sum(unit * parts + part, r)
                         : parts == 1 ? part_sum(unit * 2, r) + part_sum(unit * 2 + 1, r)
                                      : part_sum(unit * 2 + part, r);
                for (int c = 0; c < C; ++c) sums[r][c] = Ints{} - own[r] * reader.zero();
            }
            add_part(sums, high, rows, row, reader, unit, tile, part, fetched);
            for (int c = 0; c < C; ++c) {
                const Floats scale = reader.scale(unit, tile + c, part), least = reader.least(unit, tile + c, part);
                for (int r = 0; r < R; ++r) {
                    const Floats sum = __builtin_convertvector(joined<Reader::kForm>(sums[r][c], high[r][c]), Floats);
                    if constexpr (kBits == 8) {
                        const float x_scale = rows.scales[(unit * parts + part) * rows.count + row + r];
                        found[r][c] += sum * (scale * x_scale);
                        if constexpr (Reader::kHasLeast) found[r][c] -= least * (x_scale * static_cast<float>(own[r]));
                    } else {
                        found[r][c] += sum * scale;
                        if constexpr (Reader::kHasLeast) found[r][c] -= least * static_cast<float>(own[r]);
                    }
                }
            }
        }
        for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(fetched + line * 64, 0, 2);
        fetched += (Reader::kLines + lines) * 64;
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c)
            totals[r][c] = kBits == 8 ? found[r][c] : totals[r][c] + found[r][c] * rows.scales[span * rows.count + row + r];
}

// Cuts rows into blocks, the first ones as large as can be, and calls body(Count<R>(), number of the first row).
template <int R, typename Body>
void in_blocks(int64_t first, int64_t last, Body body) {
    for (; last - first >= R; first += R) body(Count<R>(), first);
    if constexpr (R > 1) in_blocks<R / 2>(first, last, body);
}

// Rows of x times a whole panel as it is kept. A single block fetches what comes next in this panel, several the
// next panel.
template <int kBits, typename Reader>
void as_kept(const Results& results, int64_t column, int64_t left, const Rows& rows, const Reader& reader, int64_t first,
             int64_t last, int64_t panel_bytes) {
    const int64_t spans = (rows.cut.width / kUnit + kSpan - 1) / kSpan;
    const int64_t blocks = (last - first + kFewTogether - 1) / kFewTogether;
    const uint8_t* ahead = reader.panel + (blocks == 1 ? kFetchAhead<typename Reader::Kept> : panel_bytes);
    for (int64_t b = 0; b < blocks; ++b) {
        const int64_t from = first + (last - first) * b / blocks, to = first + (last - first) * (b + 1) / blocks;
        with_rows<kFewTogether>(to - from, [&](auto count) {
            constexpr int R = decltype(count)::value;
            Floats totals[R][kAbreast] = {};
            for (int64_t tile = 0; tile < kTiles; tile += kAbreast) {
                std::memset(totals, 0, sizeof totals);
                for (int64_t span = 0; span < spans; ++span)
                    add_span<kBits>(totals, rows, from, reader, span, tile, ahead + span * Reader::kLines * 64 * kSpan);
                results.put(from, column + tile * kLanes, totals, R, left - tile * kLanes);
            }
        });
    }
}

// Rows of x times one panel, opened span by span. `totals` has room for all rows.
template <int kBits, typename Reader, typename Open>
void as_opened(const Results& results, int64_t column, int64_t left, const Rows& rows, const Reader& reader, Open& opened,
               float* totals, int64_t first, int64_t last) {
    // Calls body(totals [R][C], number of the first row, of the first tile).
    const auto for_blocks = [&](auto body) {
        if (kAbreast == kTiles && reader.columns() < kPanel)  // a single panel is not worth more code
            for (int64_t row = first; row < last; ++row)
                for (int64_t tile = 0; tile * kLanes < reader.columns(); ++tile)
                    body(reinterpret_cast<Floats(&)[1][1]>(totals[(row - first) * kPanel + tile * kLanes]), row, tile);
        else
            in_blocks<kOpenedTogether<Open::kForm>>(first, last, [&](auto count, int64_t row) {
                constexpr int R = decltype(count)::value;
                float* own = totals + (row - first) * kPanel;
                for (int64_t tile = 0; tile * kLanes < reader.columns(); tile += kAbreast)
                    body(reinterpret_cast<Floats(&)[R][kAbreast]>(own[tile * kLanes * R]), row, tile);
            });
    };
    std::memset(totals, 0, (last - first) * kPanel * sizeof(float));
    const int64_t units = rows.cut.width / kUnit, blocks = (last - first) / kOpenedTogether<Open::kForm> + 1;
    for (int64_t span = 0; span * kSpan < units; ++span) {
        opened.open(reader, span * kSpan, std::min(kSpan, units - span * kSpan));
        // While the rows are multiplied, what is opened next is fetched, each block its share.
        const int64_t bytes = reader.span_bytes(), lines = bytes / 64 / kSpan / blocks + 1;
        const uint8_t* ahead = reader.panel + (span + 1) * bytes;
        for_blocks([&](auto& sums, int64_t row, int64_t tile) {
            add_span<kBits>(sums, rows, row, opened, span, tile, ahead, tile == 0 ? lines : 0);
            if (tile == 0) ahead += lines * kSpan * 64;
        });
    }
    for_blocks([&](auto& sums, int64_t row, int64_t tile) {
        constexpr int64_t R = sizeof sums / sizeof sums[0];
        results.put(row, column + tile * kLanes, sums, R, left - tile * kLanes);
    });
}

// What a thread needs to multiply rows by panels.
template <typename Kind, int kBits>
class Worker {
public:
    Worker(const Product& p, int32_t dtype, const Rows& rows) : results_(p, dtype), rows_(rows), at_{p.out, p.in} {}

    void multiply(const void* weight, int64_t panel, int64_t first, int64_t last) {
        const int64_t columns = at_.columns(panel), column = panel * kPanel, left = at_.rows - column;
        const uint8_t* kept = static_cast<const uint8_t*>(weight) + at_.panel_at(panel);
        const bool fits = kMultipliesBytes ? rows_.in_bytes : rows_.in_pairs;
        if (fits && last - first <= kUnopened<Kind, kBits> && columns == kPanel) {
            const Stored<Kind, kForKept<kBits>, kPanel> stored = {kept, kPanel};
            as_kept<kBits>(results_, column, left, rows_, stored, first, last, columns * at_.row_bytes());
            return;
        }
        if (!opened_) {
            opened_.reset(new Open);
            totals_ = make_buffer<float>(kRowsAtOnce * kPanel);
        }
        const Stored<Kind, kForOpened<kBits>> stored = {kept, columns};
        for (int64_t at = first; at < last; at += kRowsAtOnce)
            as_opened<kBits>(results_, column, left, rows_, stored, *opened_, totals_.get(), at, std::min(last, at + kRowsAtOnce));
    }

    void fetch_first(const void* weight, int64_t panel) const {
        const uint8_t* from = static_cast<const uint8_t*>(weight) + at_.panel_at(panel);
        for (int64_t line = 0; line < std::min(kFetchAhead<Kind>, at_.columns(panel) * at_.row_bytes()); line += kLineBytes)
            __builtin_prefetch(from + line, 0, 2);
    }

private:
    using Open = Opened<Kind::kGroup, Kind::kHasLeast, kForOpened<kBits>>;
    const Results results_;
    const Rows& rows_;
    const Layout<Kind> at_;
    std::unique_ptr<Open> opened_;
    Buffer<float> totals_;
};

// --- one function per kind of block, chosen by number -------------------------------------------------------

int32_t any_pack(void* to, BlockRows source, int64_t first, int64_t rows, int32_t kind) {
    return with_kind(kind, [&](auto kept) { pack<decltype(kept)>(to, source, first, rows); });
}

void any_unpack(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width, int64_t rows,
                int32_t kind, int32_t dtype) {
    with_kind(kind, [&](auto kept) { unpack(out, weight, ids, count, Layout<decltype(kept)>{rows, width}, dtype); });
}

// Calls body(Kind(), bits of x's integers as a constant).
template <typename Body>
void with_both(Blocks blocks, Body body) {
    with_kind(blocks.kind, [&](auto kept) {
        blocks.x_bits == 8 ? body(kept, std::integral_constant<int, 8>()) : body(kept, std::integral_constant<int, 16>());
    });
}

// Rows of x: in bytes for panels as they are kept, in what else opened ones want.
template <int kBits, typename Kind>
Rows rows_for(int64_t count, int64_t most, const Layout<Kind>& at) {
    const bool few = most <= kUnopened<Kind, kBits>, whole = at.columns(at.panels() - 1) == kPanel;
    const bool bytes = kMultipliesBytes && (few || kBits == 8), pairs = kForOpened<kBits> == Form::kPairs;
    const Cut cut = kBits == 8 ? Cut{at.width, Kind::kGroup, Kind::kGroup} : Cut{at.width, kSpan * kUnit, kLanes};
    return Rows(count, cut, kBits, bytes, pairs && (!bytes || !whole), kUnit);
}

void any_product(const Product& p, Blocks blocks, int32_t dtype) {
    with_both(blocks, [&](auto kept, auto bits) {
        using Kind = decltype(kept);
        const Layout<Kind> at = {p.out, p.in};
        Rows rows = rows_for<bits()>(p.rows, p.rows, at);
        round_rows(rows, p, p.rows, dtype);
        multiply_panels(p, at.panels(), [&] { return Worker<Kind, bits()>(p, dtype, rows); });
    });
}

void any_grouped(const Product& p, const int64_t* counts, int64_t groups, Blocks blocks, int32_t dtype) {
    const Grouped own(counts, groups);
    with_both(blocks, [&](auto kept, auto bits) {
        using Kind = decltype(kept);
        const Layout<Kind> at = {p.out, p.in};
        Rows rows = rows_for<bits()>(own.rows, own.most, at);
        round_rows(rows, p, own.rows, dtype);
        multiply_groups(p, own, at.panels(), at.bytes(), [&] { return Worker<Kind, bits()>(p, dtype, rows); });
    });
}

}  // namespace

extern const SuperblockOps TABLE(superblocks_);
const SuperblockOps TABLE(superblocks_) = {any_pack, any_unpack, any_product, any_grouped};
