// Products with weights that are blocks of GGUF files; compiled once per instruction set.
//
// Panels are those of linear.cpp; what a block looks like in one is said in superblock_kinds.h. Of each 256 inputs a row of
// x becomes integers of sixteen bits with a scale that is a power of two: of bfloat16 all but the smallest numbers are exact in
// that. Sums of what shares a scale are exact, and are added in their order, so a result depends on its own row alone,
// however many rows are computed beside it and by which instructions. With few rows codes are taken out of their words where
// they are multiplied; with more, 256 inputs of a panel are opened for all of them, in the core's cache.
#include "superblocks.h"

#include <memory>

#include "../variant.h"
#include "buffer.h"
#include "superblock_kinds.h"
#include "superblock_rows.h"

namespace {

constexpr int64_t kRowsAtOnce = 384;            // rows of x that stay in a core's cache beside a panel
constexpr int64_t kFetchAhead = 8192;           // bytes between what is read of a panel and what is fetched
constexpr int64_t kRunBytes = 256 << 10;        // of the panels that a worker takes at once with few rows
constexpr int kFewTogether = kMultipliesBytes ? 3 : kRows;  // rows of a block; a sum for each byte of x takes two registers
constexpr int64_t kFewRows = 12;                // with more, products take longer than fetching and are shared out finely
// With more rows, panels are opened; as measured. Many scales make it dearer to go over a panel again and again.
template <typename Kind>
constexpr int64_t kUnopened = !kMultipliesBytes ? 12 : Kind::kGroup == kUnit ? 64 : 24;

int64_t rounded_up(int64_t number, int64_t to) { return (number + to - 1) / to * to; }

// Where things are in a weight [rows, width].
template <typename Kind>
struct Layout {
    static constexpr int64_t kUnits = Kind::kInputs / kUnit;  // of a block
    int64_t rows, width;

    int64_t blocks() const { return width / Kind::kInputs; }
    int64_t units() const { return width / kUnit; }
    int64_t panels() const { return (rows + kPanel - 1) / kPanel; }
    int64_t columns(int64_t panel) const { return std::min<int64_t>(kPanel, rounded_up(rows, kLanes) - panel * kPanel); }
    int64_t row_bytes() const { return blocks() * Kind::kBytes; }
    int64_t bytes() const { return rounded_up(rows, kLanes) * row_bytes(); }
    int64_t panel_at(int64_t panel) const { return panel * kPanel * row_bytes(); }
};

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

// Reads a panel as it is kept.
template <typename Kind>
struct Stored {
    static constexpr int64_t kGroup = Kind::kGroup, kUnits = Layout<Kind>::kUnits;
    static constexpr bool kHasLeast = Kind::kHasLeast;
    static constexpr int32_t kZero = Kind::kZero;
    static constexpr bool kReadsBytes = kMultipliesBytes;
    static constexpr int kTogether = kFewTogether;
    static constexpr int kLines = Kind::kBytes / kUnits;  // that a unit of a whole panel takes

    const uint8_t* panel;
    int64_t columns;

    Place place(int64_t unit, int64_t tile) const {
        const uint8_t* block = panel + unit / kUnits * columns * Kind::kBytes;
        const uint8_t* words = block + num_halves<Kind>() * columns * 2;
        return {block + tile * kLanes * 2, words + tile * kLanes * 4, columns};
    }
    int32_t zero() const { return kZero; }
    Words pairs(int64_t unit, int64_t tile, int i) const { return pair(quad(unit, tile, i / 2), i % 2); }
    Words quad(int64_t unit, int64_t tile, int i) const { return Kind::quad(place(unit, tile), unit % kUnits, i); }
    Floats scale(int64_t unit, int64_t tile, int part) const { return Kind::scale(place(unit, tile), unit % kUnits, part); }
    Floats least(int64_t unit, int64_t tile, int part) const {
        if constexpr (kHasLeast) return Kind::least(place(unit, tile), unit % kUnits, part);
        return Floats{};
    }
};

template <typename T, typename Kind>
void unpack(void* out, const void* weight, const int64_t* ids, int64_t count, Layout<Kind> at) {
    using Reader = Stored<Kind>;
    share_out(count, count * at.width >= kParallelProducts, [=](Pieces& pieces) {
        for (int64_t i; pieces.next(&i);) {
            const int64_t panel = ids[i] / kPanel, tile = ids[i] % kPanel / kLanes, lane = ids[i] % kLanes;
            const Reader reader = {static_cast<const uint8_t*>(weight) + at.panel_at(panel), at.columns(panel)};
            for (int64_t unit = 0; unit < at.units(); ++unit) {
                float numbers[kUnit];
                for (int q = 0; q < kQuads; ++q) {
                    const int part = static_cast<int>(q * kQuad / Kind::kGroup);
                    const float scale = reader.scale(unit, tile, part)[lane], least = reader.least(unit, tile, part)[lane];
                    const uint32_t word = reader.quad(unit, tile, q)[lane];
                    for (int j = 0; j < kQuad; ++j)
                        numbers[q * kQuad + j] = scale * (static_cast<int32_t>(word >> 8 * j & 0xff) - reader.zero()) - least;
                }
                T* to = static_cast<T*>(out) + i * at.width + unit * kUnit;
                for (int64_t k = 0; k < kUnit; k += kLanes) store(to + k, load(numbers + k));
            }
        }
    });
}

// 256 inputs of a panel, opened: codes as pairs of sixteen bits with their zero taken off, scales as floats.
template <int64_t kInGroup, bool kLeast>
struct Opened {
    static constexpr int64_t kGroup = kInGroup;
    static constexpr bool kHasLeast = kLeast, kReadsBytes = false;
    static constexpr int kTogether = kRows, kLines = 0, kParts = kUnit / kInGroup;
    static constexpr int64_t kPairs = kQuads * 2;  // of a unit

    Buffer<uint32_t> codes = make_buffer<uint32_t>(kSpan * kPairs * kPanel);
    Buffer<float> scales = make_buffer<float>(kSpan * kParts * kPanel);
    Buffer<float> leasts = make_buffer<float>(kLeast ? kSpan * kParts * kPanel : 1);
    int64_t columns = 0, first = 0;

    // Opens `units` units from `begin` on.
    template <typename Reader>
    void open(const Reader& reader, int64_t begin, int64_t units) {
        columns = reader.columns;
        first = begin;
        const Shorts zero = Shorts{} + static_cast<uint16_t>(reader.zero());
        for (int64_t unit = begin; unit < begin + units; ++unit)
            for (int64_t tile = 0; tile * kLanes < columns; ++tile) {
                for (int part = 0; part < kParts; ++part) {
                    store(&scales[scale_at(unit, tile, part)], reader.scale(unit, tile, part));
                    if (kLeast) store(&leasts[scale_at(unit, tile, part)], reader.least(unit, tile, part));
                }
#pragma GCC unroll 8
                for (int q = 0; q < kQuads; ++q) {
                    const Words words = reader.quad(unit, tile, q);
                    const Shorts halves[2] = {(Shorts)pair(words, 0) - zero, (Shorts)pair(words, 1) - zero};
                    std::memcpy(&codes[code_at(unit, tile, 2 * q)], &halves[0], sizeof halves[0]);
                    std::memcpy(&codes[code_at(unit, tile, 2 * q + 1)], &halves[1], sizeof halves[1]);
                }
            }
    }
    int32_t zero() const { return 0; }
    Words pairs(int64_t unit, int64_t tile, int i) const { return load_words(&codes[code_at(unit, tile, i)]); }
    Floats scale(int64_t unit, int64_t tile, int part) const { return load(&scales[scale_at(unit, tile, part)]); }
    Floats least(int64_t unit, int64_t tile, int part) const {
        return kLeast ? load(&leasts[scale_at(unit, tile, part)]) : Floats{};
    }

private:
    typedef uint16_t Shorts __attribute__((vector_size(kLanes * 4)));
    int64_t code_at(int64_t unit, int64_t tile, int i) const { return ((unit - first) * kPairs + i) * columns + tile * kLanes; }
    int64_t scale_at(int64_t unit, int64_t tile, int part) const {
        return ((unit - first) * kParts + part) * columns + tile * kLanes;
    }
};

// --- products -----------------------------------------------------------------------------------------------

// Adds the products of R rows of x and C tiles with codes that share a scale to sums of the low bytes and of the high ones;
// there are no high ones where pairs are multiplied.
template <typename Reader, int R, int C>
inline __attribute__((always_inline)) void add_part(Ints (&sums)[R][C], Ints (&high)[R][C], const Rows& rows, int64_t row,
                                                    const Reader& reader, int64_t unit, int64_t tile, int part,
                                                    const uint8_t* fetched) {
    constexpr int steps = Reader::kReadsBytes ? 1 : 2, count = Reader::kGroup / kQuad * steps, of_unit = kQuads * steps;
    constexpr int inputs = kQuad / steps;
#pragma GCC unroll 16
    for (int step = 0; step < count; ++step) {
        const int i = part * count + step;
        Words own[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
            if constexpr (Reader::kReadsBytes)
                own[c] = reader.quad(unit, tile + c, i);
            else
                own[c] = reader.pairs(unit, tile + c, i);
        }
        if constexpr (C == kTiles && Reader::kLines > 0)
#pragma GCC unroll 8
            for (int line = i * Reader::kLines / of_unit; line < (i + 1) * Reader::kLines / of_unit; ++line)
                __builtin_prefetch(fetched + line * 64, 0, 2);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const int64_t x = (row + r) * rows.stride + unit * kUnit + i * inputs;
            if constexpr (Reader::kReadsBytes) {
                const Words upper = spread_word(&rows.high[x]), lower = spread_word(&rows.low[x]);
#pragma GCC unroll 4
                for (int c = 0; c < C; ++c) {
                    high[r][c] = add_bytes(high[r][c], upper, own[c]);
                    sums[r][c] = add_bytes(sums[r][c], lower, own[c]);
                }
            } else {
                const Words numbers = spread_word(&rows.pairs[x]);
#pragma GCC unroll 4
                for (int c = 0; c < C; ++c) sums[r][c] = add_pairs(sums[r][c], numbers, own[c]);
            }
        }
    }
}

// Adds rows of x from `row` on times the tiles of a panel from `tile` on, of one span. Not inlined: it is the same for all
// element types.
template <typename Reader, int R, int C>
__attribute__((noinline)) void add_span(Floats (&totals)[R][C], const Rows& rows, int64_t row, const Reader& reader,
                                        int64_t span, int64_t tile, const uint8_t* fetched) {
    constexpr int parts = kUnit / Reader::kGroup;
    Floats found[R][C] = {};
    for (int64_t unit = span * kSpan; unit < std::min(rows.units, (span + 1) * kSpan); ++unit) {
#pragma GCC unroll 2
        for (int part = 0; part < parts; ++part) {
            Ints sums[R][C], high[R][C] = {};
            int32_t own[R];
            for (int r = 0; r < R; ++r) {
                const int32_t* both = &rows.sums[((row + r) * rows.units + unit) * 2];
                own[r] = parts == 1 ? both[0] + both[1] : both[part];
                for (int c = 0; c < C; ++c) sums[r][c] = Ints{} - own[r] * reader.zero();
            }
            add_part(sums, high, rows, row, reader, unit, tile, part, fetched);
            for (int c = 0; c < C; ++c) {
                const Floats scale = reader.scale(unit, tile + c, part), least = reader.least(unit, tile + c, part);
                for (int r = 0; r < R; ++r) {
                    const Ints sum = Reader::kReadsBytes ? sums[r][c] + (high[r][c] << 8) : sums[r][c];
                    found[r][c] += __builtin_convertvector(sum, Floats) * scale;
                    if constexpr (Reader::kHasLeast) found[r][c] -= least * static_cast<float>(own[r]);
                }
            }
        }
        fetched += Reader::kLines * 64;
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) totals[r][c] += found[r][c] * rows.powers[(row + r) * rows.spans + span];
}

template <typename T, int R, int C>
void put(T* out, int64_t stride, const Floats (&totals)[R][C], int64_t left) {
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C && c * kLanes < left; ++c) {
            T* to = out + r * stride + c * kLanes;
            left - c * kLanes >= kLanes ? store(to, totals[r][c]) : store(to, totals[r][c], left - c * kLanes);
        }
}

// Rows of x and where they are cut: evenly, so that no block is left with one.
struct Blocks {
    int64_t first, last, most;

    int64_t count() const { return (last - first + most - 1) / most; }
    int64_t begin(int64_t block) const { return first + (last - first) * block / count(); }
};

// Rows times one panel as it is kept, of whose columns `left` are results. What comes `ahead` is fetched.
template <typename T, typename Reader>
void as_kept(T* result, int64_t stride, const Rows& rows, const Reader& reader, Blocks cut, int64_t left,
              const uint8_t* ahead) {
    for (int64_t b = 0; b < cut.count(); ++b) {
        const int64_t from = cut.begin(b);
        T* out = result + from * stride;
        with_rows<Reader::kTogether>(cut.begin(b + 1) - from, [&](auto count) {
            constexpr int R = decltype(count)::value;
            if constexpr (kAbreast == kTiles)
                if (reader.columns == kPanel) {
                    Floats totals[R][kTiles] = {};
                    for (int64_t span = 0; span < rows.spans; ++span)
                        add_span(totals, rows, from, reader, span, 0, ahead + span * Reader::kLines * 64 * kSpan);
                    put(out, stride, totals, left);
                    return;
                }
            for (int64_t tile = 0; tile * kLanes < reader.columns; ++tile) {
                Floats totals[R][1] = {};
                for (int64_t span = 0; span < rows.spans; ++span) add_span(totals, rows, from, reader, span, tile, nullptr);
                put(out + tile * kLanes, stride, totals, left - tile * kLanes);
            }
        });
    }
}

// Calls body(totals [R][C], number of the first row, of the first tile) block by block, for totals that are kept in memory.
template <int kTogether, typename Body>
void for_blocks(Blocks cut, float* totals, int64_t columns, Body body) {
    for (int64_t b = 0; b < cut.count(); ++b) {
        const int64_t from = cut.begin(b);
        float* own = totals + (from - cut.first) * kPanel;
        with_rows<kTogether>(cut.begin(b + 1) - from, [&](auto count) {
            constexpr int R = decltype(count)::value;
            if constexpr (kAbreast == kTiles)
                if (columns == kPanel) return body(reinterpret_cast<Floats(&)[R][kTiles]>(*own), from, 0);
            for (int64_t tile = 0; tile * kLanes < columns; ++tile)
                body(reinterpret_cast<Floats(&)[R][1]>(own[tile * kLanes * R]), from, tile);
        });
    }
}

// Rows times one panel, of whose columns `left` are results, opened span by span. `totals` has room for all rows.
template <typename T, typename Reader, typename Open>
void as_opened(T* result, int64_t stride, const Rows& rows, const Reader& reader, Open& opened, float* totals, Blocks cut,
               int64_t left) {
    constexpr int kTogether = Open::kTogether;
    std::memset(totals, 0, (cut.last - cut.first) * kPanel * sizeof(float));
    for (int64_t span = 0; span < rows.spans; ++span) {
        opened.open(reader, span * kSpan, std::min(kSpan, rows.units - span * kSpan));
        for_blocks<kTogether>(cut, totals, reader.columns, [&](auto& sums, int64_t row, int64_t tile) {
            add_span(sums, rows, row, opened, span, tile, nullptr);
        });
    }
    for_blocks<kTogether>(cut, totals, reader.columns, [&](auto& sums, int64_t row, int64_t tile) {
        put(result + row * stride + tile * kLanes, stride, sums, left - tile * kLanes);
    });
}

// What a worker needs to multiply rows by panels.
template <typename T, typename Kind>
class Worker {
public:
    Worker(const Product& p, const Rows& rows) : p_(p), rows_(rows), at_{p.out, p.in} {}

    // Rows [first, last) times a panel of the weight.
    void multiply(const void* weight, int64_t panel, int64_t first, int64_t last) {
        using Reader = Stored<Kind>;
        const Reader stored = {static_cast<const uint8_t*>(weight) + at_.panel_at(panel), at_.columns(panel)};
        T* out = static_cast<T*>(p_.result) + panel * kPanel;
        const int64_t left = p_.out - panel * kPanel;
        if (rows_.in_bytes == Reader::kReadsBytes && last - first <= kUnopened<Kind>) {
            const Blocks cut = {first, last, Reader::kTogether};
            const int64_t ahead = cut.count() == 1 ? kFetchAhead : stored.columns * at_.row_bytes();
            as_kept(out, p_.result_stride, rows_, stored, cut, left, stored.panel + ahead);
            return;
        }
        if (!opened_) {
            opened_.reset(new Open);
            totals_ = make_buffer<float>(kRowsAtOnce * kPanel);
        }
        for (int64_t at = first; at < last; at += kRowsAtOnce)
            as_opened(out, p_.result_stride, rows_, stored, *opened_, totals_.get(),
                      {at, std::min(last, at + kRowsAtOnce), Open::kTogether}, left);
    }

    // What the first panel of a worker's share does not fetch for itself.
    void fetch_first(const void* weight, int64_t panel) const {
        const uint8_t* from = static_cast<const uint8_t*>(weight) + at_.panel_at(panel);
        for (int64_t line = 0; line < std::min(kFetchAhead, at_.columns(panel) * at_.row_bytes()); line += 64)
            __builtin_prefetch(from + line, 0, 2);
    }

private:
    using Open = Opened<Kind::kGroup, Kind::kHasLeast>;
    const Product& p_;
    const Rows& rows_;
    const Layout<Kind> at_;
    std::unique_ptr<Open> opened_;
    Buffer<float> totals_;
};

template <typename T, typename Kind>
void product(const Product& p) {
    const Layout<Kind> at = {p.out, p.in};
    Rows rows(p.rows, p.in, kMultipliesBytes && p.rows <= kUnopened<Kind>);
    round_rows<T>(rows, p, p.rows);
    const int64_t panels = at.panels(), parts = (p.rows + kRowsAtOnce - 1) / kRowsAtOnce;
    // With few rows a worker takes several panels that lie together, so that fetching ahead begins less often.
    const int64_t together = kRunBytes / (kPanel * at.row_bytes() + 1), shares = panels / (4 * max_workers());
    const int64_t run = p.rows > kFewRows ? 1 : std::max<int64_t>(1, std::min(together, shares));
    const int64_t runs = (panels + run - 1) / run;
    share_out(runs * parts, p.rows * p.out * p.in >= kParallelProducts, [&](Pieces& pieces) {
        Worker<T, Kind> worker(p, rows);
        for (int64_t i; pieces.next(&i);) {
            const int64_t part = i / runs, begin = i % runs * run;
            const int64_t first = p.rows * part / parts, last = p.rows * (part + 1) / parts;
            worker.fetch_first(p.weight, begin);
            for (int64_t panel = begin; panel < std::min(begin + run, panels); ++panel)
                worker.multiply(p.weight, panel, first, last);
        }
    });
}

template <typename T, typename Kind>
void grouped(const Product& p, const int64_t* counts, int64_t groups) {
    const Layout<Kind> at = {p.out, p.in};
    std::unique_ptr<int64_t[]> chosen(new int64_t[groups]), begins(new int64_t[groups + 1]);
    int64_t first = 0, count = 0, most = 0;
    for (int64_t group = 0; group < groups; ++group) {
        if (!counts[group]) continue;
        chosen[count] = group;
        begins[count++] = first;
        first += counts[group];
        most = std::max(most, counts[group]);
    }
    begins[count] = first;
    Rows rows(first, p.in, kMultipliesBytes && most <= kUnopened<Kind>);
    round_rows<T>(rows, p, first);
    share_out(count * at.panels(), first * p.out * p.in >= kParallelProducts, [&](Pieces& pieces) {
        Worker<T, Kind> worker(p, rows);
        for (int64_t i; pieces.next(&i);) {
            const int64_t group = i / at.panels();
            const void* weight = static_cast<const char*>(p.weight) + chosen[group] * at.bytes();
            worker.multiply(weight, i % at.panels(), begins[group], begins[group + 1]);
        }
    });
}

// --- one function per kind and element type, chosen by number -----------------------------------------------

template <typename Body>
void with_dtype(int32_t dtype, Body body) {
    dtype == kFloat32 ? body(float()) : dtype == kBFloat16 ? body(BFloat16()) : body(Float16());
}

int32_t any_pack(void* to, BlockRows source, int64_t first, int64_t rows, int32_t kind) {
    return with_kind(kind, [&](auto kept) { pack<decltype(kept)>(to, source, first, rows); });
}

void any_unpack(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width, int64_t rows,
                int32_t kind, int32_t dtype) {
    with_kind(kind, [&](auto kept) {
        const Layout<decltype(kept)> at = {rows, width};
        with_dtype(dtype, [&](auto number) { unpack<decltype(number)>(out, weight, ids, count, at); });
    });
}

void any_product(const Product& p, int32_t kind, int32_t dtype) {
    with_kind(kind, [&](auto kept) {
        with_dtype(dtype, [&](auto number) { product<decltype(number), decltype(kept)>(p); });
    });
}

void any_grouped(const Product& p, const int64_t* counts, int64_t groups, int32_t kind, int32_t dtype) {
    with_kind(kind, [&](auto kept) {
        with_dtype(dtype, [&](auto number) { grouped<decltype(number), decltype(kept)>(p, counts, groups); });
    });
}

}  // namespace

extern const SuperblockOps TABLE(superblocks_);
const SuperblockOps TABLE(superblocks_) = {any_pack, any_unpack, any_product, any_grouped};
