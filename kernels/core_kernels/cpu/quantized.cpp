// Products with weights of eight and four bits, and the rounding; compiled once per instruction set.
//
// Panels are those of linear.cpp. For each group of inputs a panel holds the scales of its rows, then their integers step
// after step: it is read from one end to the other, once. Of each group of inputs a row of x becomes integers of sixteen
// bits with a scale that is a power of two: of bfloat16 all but the smallest numbers are exact in that. The sum of a
// group's products is exact, and groups are added in their order. So a result depends on its own row alone, however many
// rows are computed beside it and by which instructions.
#include "quantized.h"

#include <memory>

#include "../variant.h"
#include "buffer.h"
#include "codes.h"
#include "integers.h"
#include "parallel.h"
#include "tile_codes.h"

namespace {

constexpr int64_t kRowsAtOnce = 384;            // rows of x that stay in a core's cache beside a panel
// Bytes between what is read of a panel and what is fetched; as measured: neither does well with the other's.
template <int kBits>
constexpr int64_t kFetchAhead = kBits == 8 ? 4096 : 8192;
constexpr int64_t kRunBytes = 256 << 10;        // of the panels that a worker takes at once with few rows
constexpr int64_t kFewRows = 12;                // with more, products take longer than fetching and are shared out finely
constexpr int64_t kLineBytes = 64;              // that are fetched together
constexpr int64_t kLargestGroup = 256;
constexpr int kTogether = kMultipliesBytes ? 3 : kRows;  // rows of a block; a sum for each byte of x takes two registers

// --- rounding weights ---------------------------------------------------------------------------------------

// What one step of the integers stands for. Of four bits the number furthest from zero becomes -8, since there is one more
// integer below zero than above it.
template <int kBits>
BFloat16 scale_of(const float* numbers, int64_t count) {
    float least = 0, most = 0;
    for (int64_t i = 0; i < count; ++i) {
        least = numbers[i] < least ? numbers[i] : least;
        most = numbers[i] > most ? numbers[i] : most;
    }
    const float furthest = -least > most ? least : most;
    BFloat16 scale[kLanes];
    store(scale, spread(kBits == 4 ? furthest / Codes<4>::kLeast : std::max(-least, most) / Codes<8>::kMost));
    return scale[0];
}

template <int kBits>
void round_all(int8_t* codes, const float* numbers, int64_t count, float scale) {
    const float inverse = scale == 0 ? 0 : 1 / scale;
    for (int64_t i = 0; i < count; ++i) {
        float code = numbers[i] * inverse;
        code = code > Codes<kBits>::kLeast ? code : Codes<kBits>::kLeast;  // NaN becomes an integer, too
        code = code < Codes<kBits>::kMost ? code : Codes<kBits>::kMost;
        codes[i] = static_cast<int8_t>(static_cast<int32_t>(code + (code < 0 ? -0.5f : 0.5f)));
    }
}

// One row's integers of a group, and its scale, where a panel with so many columns has them.
template <int kBits, typename Scale>
void put_group(uint8_t* group, int64_t column, int64_t columns, Scale scale, const int8_t* codes, int64_t inputs) {
    std::memcpy(group + column * sizeof scale, &scale, sizeof scale);
    uint8_t* place = group + columns * sizeof scale + column * sizeof(uint32_t);
    for (int64_t k = 0; k < inputs; k += Codes<kBits>::kInputs, place += columns * sizeof(uint32_t)) {
        const uint32_t word = Codes<kBits>::word(codes + k);
        std::memcpy(place, &word, sizeof word);
    }
}

// One panel's part of rows [first, last) of the weight, from a matrix with any strides.
template <typename T, int kBits>
void pack_panel(uint8_t* to, const T* from, int64_t panel, int64_t first, int64_t last, Matrix source, Layout at) {
    const int64_t columns = at.columns(panel), filled = at.filled();
    const int64_t begin = std::max(first, panel * kPanel), end = std::min(last, panel * kPanel + columns);
    std::unique_ptr<float[]> numbers(new float[filled]());
    std::unique_ptr<int8_t[]> codes(new int8_t[filled]);
    for (int64_t row = begin; row < end; ++row) {
        read_row(numbers.get(), from + (row - first) * source.row_stride, source.width, source.column_stride);
        for (int64_t g = 0; g < at.groups(); ++g) {
            const int64_t inputs = at.inputs(g), column = row - panel * kPanel;
            const float* own = numbers.get() + g * at.group;
            uint8_t* group = to + at.panel_at(panel) + at.group_at(g, columns);
            const BFloat16 scale = scale_of<kBits>(own, inputs);
            round_all<kBits>(codes.get(), own, inputs, widened(scale));
            put_group<kBits>(group, column, columns, scale, codes.get(), inputs);
        }
    }
}

// The same of integers that are there already, with their scales [rows, groups].
template <int kBits, typename Scale>
void place_all(void* to, const int8_t* codes, const Scale* scales, int64_t first, Matrix source, Layout at) {
    share_out(source.rows, source.rows * source.width >= kParallelProducts, [=](Pieces& pieces) {
        std::unique_ptr<int8_t[]> own(new int8_t[at.filled()]());
        for (int64_t i; pieces.next(&i);) {
            std::memcpy(own.get(), codes + i * source.row_stride, source.width);
            const int64_t panel = (first + i) / kPanel, columns = at.columns(panel);
            for (int64_t g = 0; g < at.groups(); ++g) {
                uint8_t* group = static_cast<uint8_t*>(to) + at.panel_at(panel) + at.group_at(g, columns);
                put_group<kBits>(group, (first + i) % kPanel, columns, scales[i * at.groups() + g], own.get() + g * at.group,
                                 at.inputs(g));
            }
        }
    });
}

template <typename T, int kBits>
void pack(void* to, const void* from, int64_t first, Matrix source, int64_t rows, Rounding kept) {
    const Layout at = {rows, source.width, kBits, kept.group, kept.has_halves};
    const int64_t last = first + source.rows, begin = first / kPanel;
    const int64_t count = source.rows ? (last - 1) / kPanel - begin + 1 : 0;
    share_out(count, source.rows * source.width >= kParallelProducts, [=](Pieces& pieces) {
        for (int64_t i; pieces.next(&i);)
            pack_panel<T, kBits>(static_cast<uint8_t*>(to), static_cast<const T*>(from), begin + i, first, last, source, at);
    });
}

template <typename T, int kBits>
void unpack(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width, int64_t rows, Rounding kept) {
    const Layout at = {rows, width, kBits, kept.group, kept.has_halves};
    share_out(count, count * width >= kParallelProducts, [=](Pieces& pieces) {
        std::unique_ptr<float[]> numbers(new float[at.filled() + kLanes]());
        for (int64_t i; pieces.next(&i);) {
            const int64_t panel = ids[i] / kPanel, columns = at.columns(panel), column = ids[i] % kPanel;
            for (int64_t g = 0; g < at.groups(); ++g) {
                const uint8_t* group = static_cast<const uint8_t*>(weight) + at.panel_at(panel) + at.group_at(g, columns);
                const float scale = scale_at(group + column * sizeof(BFloat16), at);
                const uint8_t* place = group + columns * sizeof(BFloat16) + column * sizeof(uint32_t);
                float* own = numbers.get() + g * at.group;
                for (int64_t k = 0; k < at.inputs(g); k += Codes<kBits>::kInputs, place += columns * sizeof(uint32_t)) {
                    uint32_t word;
                    std::memcpy(&word, place, sizeof word);
                    for (int64_t j = 0; j < Codes<kBits>::kInputs; ++j) own[k + j] = scale * Codes<kBits>::code(word, j);
                }
            }
            T* to = static_cast<T*>(out) + i * width;
            for (int64_t k = 0; k < width; k += kLanes)
                width - k >= kLanes ? store(to + k, load(numbers.get() + k)) : store(to + k, load(numbers.get() + k), width - k);
        }
    });
}

// --- products -----------------------------------------------------------------------------------------------

// Adds a group's products of R rows of x and C tiles to sums of the low bytes and of the high ones; there are no high ones
// where pairs are multiplied. For four lines that are read, kLines are fetched.
template <int kBits, int R, int C, int kLines>
inline __attribute__((always_inline)) void add_group(Ints (&sums)[R][C], Ints (&high)[R][C], const Rows& rows, int64_t at,
                                                     const uint8_t* from, int64_t columns, int64_t inputs,
                                                     const uint8_t* fetched) {
    using Kept = Codes<kBits>;
    constexpr int kAtOnce = kMultipliesBytes ? kQuad : 2;
    for (int64_t k = 0; k < inputs; k += Kept::kInputs, from += columns * sizeof(uint32_t)) {
        Words words[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) words[c] = load_words(from + c * sizeof(Words));
#pragma GCC unroll 4
        for (int line = 0; line < kLines; ++line) __builtin_prefetch(fetched + line * kLineBytes, 0, 2);
        fetched += kLines * kLineBytes;
#pragma GCC unroll 4
        for (int i = 0; i < Kept::kInputs / kAtOnce; ++i) {
            Words own[C];
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c)
                own[c] = kMultipliesBytes ? Kept::quad(words[c], i) : pair(Kept::quad(words[c], i / 2), i % 2);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const int64_t x = at + r * rows.stride + k + i * kAtOnce;
                if constexpr (kMultipliesBytes) {
                    const Words upper = spread_word(rows.high.get() + x), lower = spread_word(rows.low.get() + x);
#pragma GCC unroll 4
                    for (int c = 0; c < C; ++c) {
                        high[r][c] = add_bytes(high[r][c], upper, own[c]);
                        sums[r][c] = add_bytes(sums[r][c], lower, own[c]);
                    }
                } else {
                    const Words row = spread_word(rows.pairs.get() + x);
#pragma GCC unroll 4
                    for (int c = 0; c < C; ++c) sums[r][c] = add_pairs(sums[r][c], row, own[c]);
                }
            }
        }
    }
}

// total + what a group's sum stands for.
inline Floats add_scaled(Floats total, Ints sum, float x_scale, Floats scale) {
    return total + __builtin_convertvector(sum, Floats) * x_scale * scale;
}

// Rows of x from `row` on times the tiles of a panel from `tile` on.
template <int kBits, int R, int C, int kLines>
void block(Floats (&totals)[R][C], const Rows& rows, int64_t row, const uint8_t* panel, int64_t tile, int64_t columns,
           const uint8_t* fetched, Layout at) {
    for (int64_t g = 0; g < at.groups(); ++g) {
        const int64_t start = at.group_at(g, columns), of = row * rows.groups + g;
        const uint8_t* scales = panel + start + tile * kLanes * sizeof(BFloat16);
        const uint8_t* integers = panel + start + columns * sizeof(BFloat16) + tile * sizeof(Words);
        const uint8_t* ahead = fetched + start * kLines / 4;
        if (kLines) __builtin_prefetch(ahead, 0, 2);
        if (kLines == 4) __builtin_prefetch(ahead + kLineBytes, 0, 2);
        Ints sums[R][C], high[R][C] = {};
        for (int r = 0; r < R; ++r)
            for (int c = 0; c < C; ++c) sums[r][c] = Ints{} + rows.zeros[of + r * rows.groups];
        add_group<kBits, R, C, kLines>(sums, high, rows, row * rows.stride + g * at.group, integers, columns, at.inputs(g),
                                       ahead + kLineBytes * kLines / 2);
        for (int c = 0; c < C; ++c) {
            const Floats scale = load_scales(scales + c * kLanes * sizeof(BFloat16), at);
            for (int r = 0; r < R; ++r) {
                const Ints sum = kMultipliesBytes ? sums[r][c] + (high[r][c] << 8) : sums[r][c];
                totals[r][c] = add_scaled(totals[r][c], sum, rows.scales[of + r * rows.groups], scale);
            }
        }
    }
}

template <typename T, int C>
void put(T* out, int64_t stride, const Floats (*totals)[C], int64_t rows, int64_t left) {
    for (int64_t r = 0; r < rows; ++r)
        for (int c = 0; c < C && c * kLanes < left; ++c) {
            T* to = out + r * stride + c * kLanes;
            left - c * kLanes >= kLanes ? store(to, totals[r][c]) : store(to, totals[r][c], left - c * kLanes);
        }
}

#if defined(TILE_REGISTERS)
// Adds the products of one group of inputs, from number `input` of a row on, to totals of sixteen rows, or fewer, and two
// tiles, or one.
inline void add_tiled_group(Floats (*totals)[kTiles], const Rows& rows, int64_t row, int64_t count, const Layout& at,
                            int64_t group, const uint8_t* integers, const uint8_t* scales, int64_t tile, int64_t tiles,
                            int64_t quads, int64_t depth) {
    const int64_t step = tiles * sizeof(Words), x = row * rows.stride + group * at.group;
    const uint8_t* first = integers + tile * sizeof(Words);
    const uint8_t* second = tile + 1 < tiles ? first + sizeof(Words) : first;
    ByteBlock::clear();
    for (int64_t k = 0; k < quads; k += depth)
        ByteBlock::add(rows.high.get() + x + k * kQuad, rows.low.get() + x + k * kQuad, rows.stride, first + k * step,
                       second + k * step, step);
    Ints high[kTileRows][2], low[kTileRows][2];
    ByteBlock::store(high, low);
    for (int c = 0; c < 2 && tile + c < tiles; ++c) {
        const Floats scale = load_scales(scales + (tile + c) * kLanes * sizeof(BFloat16), at);
        for (int64_t r = 0; r < count; ++r) {
            const int64_t of = (row + r) * rows.groups + group;
            const Ints sum = low[r][c] + (high[r][c] << 8) + rows.zeros[of];
            totals[r][tile + c] = add_scaled(totals[r][tile + c], sum, rows.scales[of], scale);
        }
    }
}

// Rows [first, last) of x times one panel, group by group: its integers stay near while all rows are multiplied by them, and
// the next group's are fetched.
template <typename T, int kBits>
void tiled_product(const Product& p, const Rows& rows, int64_t panel, int64_t first, int64_t last, Layout at) {
    const int64_t columns = at.columns(panel), depth = depth_of(at.group);
    const uint8_t* kept = static_cast<const uint8_t*>(p.weight) + at.panel_at(panel);
    const Buffer<float> sums = make_buffer<float>((last - first) * kPanel);
    auto* totals = reinterpret_cast<Floats(*)[kTiles]>(sums.get());
    alignas(64) uint8_t wide[kLargestGroup * kPanel];
    const ByteBlock block(depth);
    for (int64_t g = 0; g < at.groups(); ++g) {
        const int64_t inputs = at.inputs(g), quads = rounded_up(inputs / kQuad, depth);
        const uint8_t *scales = kept + at.group_at(g, columns), *integers = scales + columns * sizeof(BFloat16);
        const uint8_t *next = kept + at.group_at(g + 1, columns), *end = kept + at.group_at(g + 2, columns);
        for (; next < end; next += kLineBytes) __builtin_prefetch(next, 0, 2);
        if (kBits < 8 || quads * kQuad > inputs) {
            widen<kBits>(wide, integers, columns, inputs, quads);
            integers = wide;
        }
        for (int64_t row = first; row < last; row += kTileRows)
            for (int64_t tile = 0; tile * kLanes < columns; tile += 2)
                add_tiled_group(totals + (row - first), rows, row, std::min(kTileRows, last - row), at, g, integers,
                                scales, tile, columns / kLanes, quads, depth);
    }
    T* out = static_cast<T*>(p.result) + first * p.result_stride + panel * kPanel;
    put(out, p.result_stride, totals, last - first, p.out - panel * kPanel);
}
#endif

// Rows [first, last) of x times one panel. Rows are cut evenly. A single block fetches what comes next in this panel;
// of several, the first ones fetch the next panel between them.
template <typename T, int kBits>
void panel_product(const Product& p, const Rows& rows, int64_t panel, int64_t first, int64_t last, Layout at) {
#if defined(TILE_REGISTERS)
    if (last - first >= kTiledRows) return tiled_product<T, kBits>(p, rows, panel, first, last, at);
#endif
    const int64_t columns = at.columns(panel), left = p.out - panel * kPanel, bytes = columns * at.row_bytes();
    const uint8_t* kept = static_cast<const uint8_t*>(p.weight) + at.panel_at(panel);
    const int64_t blocks = (last - first + kTogether - 1) / kTogether;
    const int lines = blocks == 1 ? 4 : blocks < 4 ? 2 : 1;
    for (int64_t b = 0; b < blocks; ++b) {
        const int64_t from = first + (last - first) * b / blocks, to = first + (last - first) * (b + 1) / blocks;
        T* out = static_cast<T*>(p.result) + from * p.result_stride + panel * kPanel;
        const uint8_t* fetched = blocks == 1 ? kept + kFetchAhead<kBits> : kept + bytes + b * bytes * lines / 4;
        with_rows<kTogether>(to - from, [&](auto count) {
            constexpr int R = decltype(count)::value;
            if (columns == kPanel && kAbreast == kTiles) {
                Floats totals[R][kAbreast] = {};
                auto run = b * lines >= 4 ? block<kBits, R, kAbreast, 0>
                           : lines == 4 ? block<kBits, R, kAbreast, 4>
                           : lines == 2 ? block<kBits, R, kAbreast, 2> : block<kBits, R, kAbreast, 1>;
                run(totals, rows, from, kept, 0, columns, fetched, at);
                put(out, p.result_stride, totals, R, left);
                return;
            }
            for (int64_t tile = 0; tile * kLanes < columns; ++tile) {
                Floats totals[R][1] = {};
                block<kBits, R, 1, 0>(totals, rows, from, kept, tile, columns, fetched, at);
                put(out + tile * kLanes, p.result_stride, totals, R, left - tile * kLanes);
            }
        });
    }
}

// What the first panel of a worker's share does not fetch for itself.
template <int kBits>
inline void fetch_first(const Product& p, int64_t panel, Layout at) {
    const uint8_t* from = static_cast<const uint8_t*>(p.weight) + at.panel_at(panel);
    for (int64_t line = 0; line < std::min(kFetchAhead<kBits>, at.columns(panel) * at.row_bytes()); line += kLineBytes)
        __builtin_prefetch(from + line, 0, 2);
}

template <typename T, int kBits>
void product(const Product& p, Rounding kept) {
    const Layout at = {p.out, p.in, kBits, kept.group, kept.has_halves};
    const Rows rows = rounded<T>(p, at);
    const int64_t panels = at.panels(), parts = (p.rows + kRowsAtOnce - 1) / kRowsAtOnce;
    // With few rows a worker takes several panels that lie together, so that fetching ahead begins less often.
    const int64_t together = kRunBytes / (kPanel * at.row_bytes()), shares = panels / (4 * max_workers());
    const int64_t run = parts > 1 || p.rows > kFewRows ? 1 : std::max<int64_t>(1, std::min(together, shares));
    const int64_t runs = (panels + run - 1) / run;
    share_out(runs * parts, p.rows * p.out * p.in >= kParallelProducts, [&](Pieces& pieces) {
        for (int64_t i; pieces.next(&i);) {
            const int64_t part = i / runs, begin = i % runs * run;
            const int64_t first = p.rows * part / parts, last = p.rows * (part + 1) / parts;
            fetch_first<kBits>(p, begin, at);
            for (int64_t panel = begin; panel < std::min(begin + run, panels); ++panel)
                panel_product<T, kBits>(p, rows, panel, first, last, at);
        }
    });
}

template <typename T, int kBits>
void grouped(const Product& p, const int64_t* counts, int64_t groups, Rounding kept) {
    const Layout at = {p.out, p.in, kBits, kept.group, kept.has_halves};
    std::unique_ptr<int64_t[]> chosen(new int64_t[groups]), begins(new int64_t[groups + 1]);
    int64_t first = 0, count = 0;
    for (int64_t group = 0; group < groups; ++group) {
        if (!counts[group]) continue;
        chosen[count] = group;
        begins[count++] = first;
        first += counts[group];
    }
    begins[count] = first;
    Product whole = p;
    whole.rows = first;
    const Rows rows = rounded<T>(whole, at);
    share_out(count * at.panels(), first * p.out * p.in >= kParallelProducts, [&](Pieces& pieces) {
        for (int64_t i; pieces.next(&i);) {
            const int64_t group = i / at.panels();
            Product own = whole;
            own.weight = static_cast<const char*>(p.weight) + chosen[group] * at.bytes();
            panel_product<T, kBits>(own, rows, i % at.panels(), begins[group], begins[group + 1], at);
        }
    });
}

// --- one function per element type and number of bits, chosen by number -------------------------------------

template <typename Body>
void with_bits(int64_t bits, Body body) {
    bits == 4 ? body(std::integral_constant<int, 4>()) : body(std::integral_constant<int, 8>());
}

// Calls body(T(), bits) for elements of type T.
template <typename Body>
void with_types(int64_t bits, int32_t dtype, Body body) {
    with_bits(bits, [&](auto kept) {
        dtype == kFloat32 ? body(float(), kept) : dtype == kBFloat16 ? body(BFloat16(), kept) : body(Float16(), kept);
    });
}

void any_pack(void* to, const void* from, int64_t first, Matrix source, int64_t rows, Rounding kept, int32_t dtype) {
    with_types(kept.bits, dtype, [&](auto number, auto bits) {
        pack<decltype(number), bits()>(to, from, first, source, rows, kept);
    });
}

void any_place(void* to, const int8_t* codes, const void* scales, int64_t first, Matrix source, int64_t rows, Rounding kept) {
    with_bits(kept.bits, [&](auto bits) {
        const Layout at = {rows, source.width, bits(), kept.group, kept.has_halves};
        if (at.has_halves) return place_all<bits()>(to, codes, static_cast<const Float16*>(scales), first, source, at);
        place_all<bits()>(to, codes, static_cast<const BFloat16*>(scales), first, source, at);
    });
}

void any_unpack(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width, int64_t rows,
                Rounding kept, int32_t dtype) {
    with_types(kept.bits, dtype, [&](auto number, auto bits) {
        unpack<decltype(number), bits()>(out, weight, ids, count, width, rows, kept);
    });
}

void any_product(const Product& p, Rounding kept, int32_t dtype) {
    with_types(kept.bits, dtype, [&](auto number, auto bits) { product<decltype(number), bits()>(p, kept); });
}

void any_grouped(const Product& p, const int64_t* counts, int64_t groups, Rounding kept, int32_t dtype) {
    with_types(kept.bits, dtype, [&](auto number, auto bits) {
        grouped<decltype(number), bits()>(p, counts, groups, kept);
    });
}

}  // namespace

extern const QuantizedOps TABLE(quantized_);
const QuantizedOps TABLE(quantized_) = {any_pack, any_place, any_unpack, any_product, any_grouped};
