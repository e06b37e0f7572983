// Products with weights of eight and four bits, and the rounding; compiled once per instruction set.
//
// Panels are those of linear.cpp (integer_panels.h): one is read from its beginning to its end, once. Of each group of inputs
// a row of x becomes integers (integers.h). The sum of a group's products is exact, and groups are added in their order. So a
// result depends on its own row alone, however many rows are computed beside it and by which instructions.
#include "quantized.h"

#include <memory>

#include "../variant.h"
#include "buffer.h"
#include "integer_panels.h"
#include "tile_codes.h"

namespace {

// Bytes between what is read of a panel and what is fetched; as measured: neither does well with the other's.
template <int kCode>
constexpr int64_t kFetchAhead = kCode == kInt8 ? 2048 : 8192;
constexpr int64_t kLargestGroup = 256;
constexpr Form kExact = kMultipliesBytes ? Form::kTwoBytes : Form::kPairs;  // how sixteen bits of x lie
constexpr int kTogether = kMultipliesBytes ? 3 : kRows;  // rows of a block; a sum for each byte of x takes two registers

// --- rounding weights ---------------------------------------------------------------------------------------

// What one step of the integers stands for. Of four bits the number furthest from zero becomes -8, since there is one more
// integer below zero than above it.
template <int kCode>
BFloat16 scale_of(const float* numbers, int64_t count) {
    float least = 0, most = 0;
    for (int64_t i = 0; i < count; ++i) {
        least = numbers[i] < least ? numbers[i] : least;
        most = numbers[i] > most ? numbers[i] : most;
    }
    const float furthest = -least > most ? least : most;
    BFloat16 scale[kLanes];
    store(scale, spread(kCode == kInt4 ? furthest / Codes<kInt4>::kLeast : std::max(-least, most) / Codes<kInt8>::kMost));
    return scale[0];
}

template <int kCode>
void round_all(int8_t* codes, const float* numbers, int64_t count, float scale) {
    const float inverse = scale == 0 ? 0 : 1 / scale;
    for (int64_t i = 0; i < count; ++i) {
        float code = numbers[i] * inverse;
        code = code > Codes<kCode>::kLeast ? code : Codes<kCode>::kLeast;  // NaN becomes an integer, too
        code = code < Codes<kCode>::kMost ? code : Codes<kCode>::kMost;
        codes[i] = static_cast<int8_t>(static_cast<int32_t>(code + (code < 0 ? -0.5f : 0.5f)));
    }
}

// One row's integers of a group, and its scale, where a panel with so many columns has them.
template <int kCode>
void put_group(uint8_t* group, int64_t column, int64_t columns, const void* scale, const uint16_t* zero, const int8_t* codes,
               int64_t inputs, const Layout& at) {
    std::memcpy(group + column * at.scale_bytes(), scale, at.scale_bytes());
    if (zero) {
        const auto kept = static_cast<uint16_t>(*zero + (at.zeros == kIntZeros ? Codes<kCode>::kZero : 0));
        std::memcpy(group + (columns + column) * sizeof kept, &kept, sizeof kept);
    }
    uint8_t* place = group + at.codes_at(columns) + column * sizeof(uint32_t);
    for (int64_t k = 0; k < inputs; k += Codes<kCode>::kInputs, place += columns * sizeof(uint32_t)) {
        const uint32_t word = Codes<kCode>::word(codes + k);
        std::memcpy(place, &word, sizeof word);
    }
}

// One panel's part of rows [first, last) of the weight, from a matrix with any strides.
template <typename T, int kCode>
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
            const BFloat16 scale = scale_of<kCode>(own, inputs);
            round_all<kCode>(codes.get(), own, inputs, widened(scale));
            put_group<kCode>(group, column, columns, &scale.bits, nullptr, codes.get(), inputs, at);
        }
    }
}

// The same of codes that are there already, with their scales, and zero points or null, [rows, groups], and factors or null.
template <int kCode>
void place_all(void* to, const int8_t* codes, const uint8_t* scales, const uint16_t* zeros, const float* factors,
               int64_t first, Matrix source, Layout at) {
    share_out(source.rows, source.rows * source.width >= kParallelProducts, [=](Pieces& pieces) {
        std::unique_ptr<int8_t[]> own(new int8_t[at.filled()]());
        for (int64_t i; pieces.next(&i);) {
            std::memcpy(own.get(), codes + i * source.row_stride, source.width);
            const int64_t panel = (first + i) / kPanel, columns = at.columns(panel), column = (first + i) % kPanel;
            uint8_t* kept = static_cast<uint8_t*>(to) + at.panel_at(panel);
            if (factors) std::memcpy(kept + column * sizeof(float), factors + i, sizeof(float));
            for (int64_t g = 0; g < at.groups(); ++g) {
                const int64_t of = i * at.groups() + g;
                put_group<kCode>(kept + at.group_at(g, columns), column, columns, scales + of * at.scale_bytes(),
                                 zeros ? zeros + of : nullptr, own.get() + g * at.group, at.inputs(g), at);
            }
        }
    });
}

template <typename T, int kCode>
void pack(void* to, const void* from, int64_t first, Matrix source, int64_t rows, Rounding kept) {
    const Layout at(rows, source.width, kept);
    const int64_t last = first + source.rows, begin = first / kPanel;
    const int64_t count = source.rows ? (last - 1) / kPanel - begin + 1 : 0;
    share_out(count, source.rows * source.width >= kParallelProducts, [=](Pieces& pieces) {
        for (int64_t i; pieces.next(&i);)
            pack_panel<T, kCode>(static_cast<uint8_t*>(to), static_cast<const T*>(from), begin + i, first, last, source, at);
    });
}

template <int kCode>
void unpack(void* out, const void* weight, const int64_t* ids, int64_t count, Layout at, int32_t dtype) {
    share_out(count, count * at.width >= kParallelProducts, [=](Pieces& pieces) {
        std::unique_ptr<float[]> numbers(new float[at.filled() + kLanes]());
        for (int64_t i; pieces.next(&i);) {
            const int64_t panel = ids[i] / kPanel, columns = at.columns(panel), column = ids[i] % kPanel;
            const int64_t tile = column / kLanes, lane = column % kLanes;
            const uint8_t* kept = static_cast<const uint8_t*>(weight) + at.panel_at(panel);
            const float factor = at.has_factors() ? load_factors(kept, tile)[lane] : 1;
            for (int64_t g = 0; g < at.groups(); ++g) {
                const uint8_t* group = kept + at.group_at(g, columns);
                const float scale = load_scales<kCode>(group, tile, at)[lane] * factor;
                const float zero = zero_at<kCode>(group, column, columns, at);
                const uint8_t* place = group + at.codes_at(columns) + column * sizeof(uint32_t);
                float* own = numbers.get() + g * at.group;
                for (int64_t k = 0; k < at.inputs(g); k += Codes<kCode>::kInputs, place += columns * sizeof(uint32_t)) {
                    uint32_t word;
                    std::memcpy(&word, place, sizeof word);
                    for (int64_t j = 0; j < Codes<kCode>::kInputs; ++j) own[k + j] = scale * Codes<kCode>::code(word, j, zero);
                }
            }
            put_numbers(out, i * at.width, numbers.get(), at.width, dtype);
        }
    });
}

// --- products -----------------------------------------------------------------------------------------------

// The span of x that a group of inputs is in: rows of eight bits have one scale.
inline int64_t span_of(int64_t group, const Rows& rows) { return rows.bits == 8 ? 0 : group; }

// Adds a group's products of R rows of x and C tiles to sums of the low bytes and of the high ones, where x has some. For four lines that are read, kLines are fetched.
template <int kCode, Form kForm, int R, int C, int kLines>
inline __attribute__((always_inline)) void add_group(Ints (&sums)[R][C], Ints (&high)[R][C], const Rows& rows, int64_t at,
                                                     const uint8_t* from, int64_t columns, int64_t inputs,
                                                     const uint8_t* fetched) {
    using Kept = Codes<kCode>;
    constexpr int inputs_at_once = kAtOnce<kForm>;
    for (int64_t k = 0; k < inputs; k += Kept::kInputs, from += columns * sizeof(uint32_t)) {
        Words words[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) words[c] = load_words(from + c * sizeof(Words));
#pragma GCC unroll 4
        for (int line = 0; line < kLines; ++line) __builtin_prefetch(fetched + line * kLineBytes, 0, 2);
        fetched += kLines * kLineBytes;
#pragma GCC unroll 4
        for (int i = 0; i < Kept::kInputs / inputs_at_once; ++i) {
            Words own[C];
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c)
                own[c] = kMultipliesBytes ? Kept::quad(words[c], i) : pair(Kept::quad(words[c], i / 2), i % 2);
            add_products<kForm>(sums, high, rows, at + k + i * inputs_at_once, rows.run, own);
        }
    }
}

// What is added to a total for a group's sum, of x with this sum and scale, in one tile of columns.
template <int kCode>
class Scaled {
public:
    Scaled(const uint8_t* group, int64_t tile, int64_t columns, const Layout& at)
        : scale_(load_scales<kCode>(group, tile, at)),
          has_zeros_(at.zeros == kFloatZeros),
          zeros_(has_zeros_ ? load_float_zeros(group, tile, columns) : Floats{}) {}

    Floats added(Floats total, Ints sum, int32_t x_sum, float x_scale) const {
        Floats own = __builtin_convertvector(sum, Floats);
        if (has_zeros_) own -= zeros_ * static_cast<float>(x_sum);
        return total + own * x_scale * scale_;
    }

private:
    const Floats scale_;
    const bool has_zeros_;
    const Floats zeros_;
};

// Rows of x from `row` on times the tiles of a panel from `tile` on.
template <int kCode, Form kForm, int R, int C, int kLines>
void block(Floats (&totals)[R][C], const Rows& rows, int64_t row, const uint8_t* panel, int64_t tile, int64_t columns,
           const uint8_t* fetched, Layout at) {
    for (int64_t g = 0; g < at.groups(); ++g) {
        const int64_t start = at.group_at(g, columns), of = g * rows.count + row, scales_at = span_of(g, rows) * rows.count + row;
        const uint8_t* group = panel + start;
        const uint8_t* ahead = fetched + start * kLines / 4;
        const int64_t head = at.codes_at(columns) * kLines / 4;
        if (kLines)
            for (int64_t line = 0; line < head; line += kLineBytes) __builtin_prefetch(ahead + line, 0, 2);
        Ints sums[R][C], high[R][C] = {};
        for (int c = 0; c < C; ++c) {
            const Ints zeros = load_zeros<kCode>(group, tile + c, columns, at);
            for (int r = 0; r < R; ++r) sums[r][c] = zeros * -rows.sums[of + r];
        }
        add_group<kCode, kForm, R, C, kLines>(sums, high, rows, rows.at(row, g * at.group),
                                       group + at.codes_at(columns) + tile * sizeof(Words), columns, at.inputs(g), ahead + head);
        for (int c = 0; c < C; ++c) {
            const Scaled<kCode> scaled(group, tile + c, columns, at);
            for (int r = 0; r < R; ++r) {
                const Ints sum = joined<kForm>(sums[r][c], high[r][c]);
                totals[r][c] = scaled.added(totals[r][c], sum, rows.sums[of + r], rows.scales[scales_at + r]);
            }
        }
    }
}

// Multiplies totals of rows by the factors of a panel's columns, from a tile on.
template <int C>
void multiply_by_factors(Floats (*totals)[C], int64_t rows, const uint8_t* panel, int64_t tile, int64_t tiles) {
    for (int64_t c = 0; c < std::min<int64_t>(C, tiles - tile); ++c) {
        const Floats factors = load_factors(panel, tile + c);
        for (int64_t r = 0; r < rows; ++r) totals[r][c] *= factors;
    }
}

struct Range {
    int64_t first, last;

    // Cuts it evenly into pieces that are at most so long, and calls body(first, count, number of the piece, pieces).
    template <typename Body>
    void cut(int64_t most, Body body) const {
        const int64_t pieces = (last - first + most - 1) / most;
        for (int64_t i = 0; i < pieces; ++i) {
            const int64_t from = first + (last - first) * i / pieces;
            body(from, first + (last - first) * (i + 1) / pieces - from, i, pieces);
        }
    }
};

// Rows of x times the tiles of a panel, one after the other: of the last panel, or where few sums stay in registers.
template <int kCode, Form kForm>
void each_tile(const Results& results, int64_t column, int64_t left, const Rows& rows, Range own, const uint8_t* kept,
               int64_t columns, Layout at) {
    constexpr int kMost = kAbreast == kTiles ? 1 : kTogether;  // a single panel is not worth more code
    own.cut(kMost, [&](int64_t from, int64_t rows_here, int64_t, int64_t) {
        with_rows<kMost>(rows_here, [&](auto count) {
            constexpr int R = decltype(count)::value;
            for (int64_t tile = 0; tile * kLanes < columns; ++tile) {
                Floats totals[R][1] = {};
                block<kCode, kForm, R, 1, 0>(totals, rows, from, kept, tile, columns, nullptr, at);
                if (at.has_factors()) multiply_by_factors(totals, R, kept, tile, columns / kLanes);
                results.put(from, column + tile * kLanes, totals, R, left - tile * kLanes);
            }
        });
    });
}

#if defined(TILE_REGISTERS)
// Adds the products of one group of inputs to totals of sixteen rows, or fewer, and two tiles, or one. `integers` are its
// codes, a quad below the other.
template <int kCode, Form kForm>
inline void add_tiled_group(Floats (*totals)[kTiles], const Rows& rows, int64_t row, int64_t count, const Layout& at,
                            int64_t index, const uint8_t* group, const uint8_t* integers, int64_t tile, int64_t tiles,
                            int64_t quads, int64_t depth) {
    const int64_t step = tiles * sizeof(Words), x = rows.at(row, index * at.group);
    const uint8_t* first = integers + tile * sizeof(Words);
    const uint8_t* second = tile + 1 < tiles ? first + sizeof(Words) : first;
    ByteBlock::clear();
    for (int64_t k = 0; k < quads; k += depth)
        ByteBlock::add<kForm == Form::kTwoBytes>(&rows.high[kForm == Form::kTwoBytes ? x + k * kQuad : 0],
                                                 &rows.low[x + k * kQuad], rows.run, first + k * step, second + k * step, step);
    Ints high[kTileRows][2], low[kTileRows][2];
    ByteBlock::store(high, low);
    for (int c = 0; c < 2 && tile + c < tiles; ++c) {
        const Scaled<kCode> scaled(group, tile + c, tiles * kLanes, at);
        const Ints zeros = load_zeros<kCode>(group, tile + c, tiles * kLanes, at);
        for (int64_t r = 0; r < count; ++r) {
            const int32_t x_sum = rows.sums[index * rows.count + row + r];
            const Ints sum = joined<kForm>(low[r][c], high[r][c]) - zeros * x_sum;
            const float x_scale = rows.scales[span_of(index, rows) * rows.count + row + r];
            totals[r][tile + c] = scaled.added(totals[r][tile + c], sum, x_sum, x_scale);
        }
    }
}

// Rows [first, last) of x times one panel, group by group: its codes stay near while all rows are multiplied by them, and
// the next group's are fetched.
template <int kCode, Form kForm>
void tiled_product(const Results& results, int64_t column, int64_t left, const Rows& rows, Range own, const uint8_t* kept,
                   int64_t columns, Layout at) {
    const int64_t first = own.first, last = own.last, depth = depth_of(at.group);
    const Buffer<float> sums = make_buffer<float>((last - first) * kPanel);
    auto* totals = reinterpret_cast<Floats(*)[kTiles]>(sums.get());
    alignas(64) uint8_t wide[kLargestGroup * kPanel];
    const ByteBlock block(depth);
    for (int64_t g = 0; g < at.groups(); ++g) {
        const int64_t inputs = at.inputs(g), quads = rounded_up(inputs / kQuad, depth);
        const uint8_t *group = kept + at.group_at(g, columns), *integers = group + at.codes_at(columns);
        const uint8_t *next = kept + at.group_at(g + 1, columns), *end = kept + at.group_at(g + 2, columns);
        for (; next < end; next += kLineBytes) __builtin_prefetch(next, 0, 2);
        if (kCode != kInt8 || quads * kQuad > inputs) {
            widen<kCode>(wide, integers, columns, inputs, quads);
            integers = wide;
        }
        for (int64_t row = first; row < last; row += kTileRows)
            for (int64_t tile = 0; tile * kLanes < columns; tile += 2)
                add_tiled_group<kCode, kForm>(totals + (row - first), rows, row, std::min(kTileRows, last - row), at, g, group,
                                       integers, tile, columns / kLanes, quads, depth);
    }
    if (at.has_factors()) multiply_by_factors(totals, last - first, kept, 0, columns / kLanes);
    results.put(first, column, totals, last - first, left);
}
#endif

// Rows of x times a whole panel. Rows are cut evenly. A single block fetches what comes next in this panel; of several, the
// first two fetch the next panel between them.
template <int kCode, Form kForm>
void whole_panel(const Results& results, int64_t column, int64_t left, const Rows& rows, Range own, const uint8_t* kept,
                 Layout at) {
    own.cut(kTogether, [&](int64_t from, int64_t rows_here, int64_t b, int64_t blocks) {
        with_rows<kTogether>(rows_here, [&](auto count) {
            constexpr int R = decltype(count)::value;
            constexpr int kSome = R == 1 ? 4 : 2, kNone = R == 1 ? 4 : 0;  // of several blocks none is left with one row
            const int64_t bytes = kPanel * at.row_bytes();
            const auto run = blocks == 1 ? block<kCode, kForm, R, kAbreast, 4>
                             : b < 2     ? block<kCode, kForm, R, kAbreast, kSome>
                                         : block<kCode, kForm, R, kAbreast, kNone>;
            Floats totals[R][kAbreast] = {};
            run(totals, rows, from, kept, 0, kPanel, blocks == 1 ? kept + kFetchAhead<kCode> : kept + bytes + b * (bytes / 2), at);
            if (at.has_factors()) multiply_by_factors(totals, R, kept, 0, kTiles);
            results.put(from, column, totals, R, left);
        });
    });
}

// What a thread needs to multiply rows by panels.
template <int kCode, Form kForm>
struct Worker {
    const Results results;
    const Rows& rows;
    const Layout at;

    void multiply(const void* weight, int64_t panel, int64_t first, int64_t last) const {
        const int64_t columns = at.columns(panel), column = panel * kPanel, left = at.rows - column;
        const uint8_t* kept = static_cast<const uint8_t*>(weight) + at.panel_at(panel);
#if defined(TILE_REGISTERS)
        if (last - first >= kTiledRows)
            return tiled_product<kCode, kForm>(results, column, left, rows, {first, last}, kept, columns, at);
#endif
        if constexpr (kAbreast == kTiles)
            if (columns == kPanel) return whole_panel<kCode, kForm>(results, column, left, rows, {first, last}, kept, at);
        each_tile<kCode, kForm>(results, column, left, rows, {first, last}, kept, columns, at);
    }

    void fetch_first(const void* weight, int64_t panel) const {
        const uint8_t* from = static_cast<const uint8_t*>(weight) + at.panel_at(panel);
        const int64_t bytes = std::min(kFetchAhead<kCode>, at.columns(panel) * at.row_bytes());
        for (int64_t line = 0; line < bytes; line += kLineBytes) __builtin_prefetch(from + line, 0, 2);
    }
};

// --- one function per kind of code, chosen by number --------------------------------------------------------

template <typename Body>
void with_code(int64_t code, Body body) {
    code == kInt4   ? body(std::integral_constant<int, kInt4>())
    : code == kInt8 ? body(std::integral_constant<int, kInt8>())
                    : body(std::integral_constant<int, kFloat4>());
}

void any_pack(void* to, const void* from, int64_t first, Matrix source, int64_t rows, Rounding kept, int32_t dtype) {
    with_dtype(dtype, [&](auto number) {
        using T = decltype(number);
        kept.code == kInt4 ? pack<T, kInt4>(to, from, first, source, rows, kept)
                           : pack<T, kInt8>(to, from, first, source, rows, kept);
    });
}

void any_place(void* to, const int8_t* codes, const void* scales, const uint16_t* zeros, const float* factors, int64_t first,
               Matrix source, int64_t rows, Rounding kept) {
    with_code(kept.code, [&](auto code) {
        const Layout at(rows, source.width, kept);
        place_all<code()>(to, codes, static_cast<const uint8_t*>(scales), zeros, factors, first, source, at);
    });
}

void any_unpack(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width, int64_t rows,
                Rounding kept, int32_t dtype) {
    with_code(kept.code, [&](auto code) { unpack<code()>(out, weight, ids, count, Layout(rows, width, kept), dtype); });
}

// Calls body(kind of code, form of x) as constants. Eight bits of x are for eight bits of weights.
template <typename Body>
void with_both(const Rounding& kept, Body body) {
    using Exact = std::integral_constant<Form, kExact>;
    using Short = std::integral_constant<Form, kMultipliesBytes ? Form::kByte : Form::kPairs>;
    if (kept.x_bits == 8)
        return body(std::integral_constant<int, kInt8>(), Short());
    with_code(kept.code, [&](auto code) { body(code, Exact()); });
}

// Of eight bits x has one scale a row, of sixteen one for each group.
Rows rows_for(int64_t count, const Layout& at, int64_t x_bits) {
    return Rows(count, {at.filled(), x_bits == 8 ? at.filled() : at.group, at.group}, x_bits, kMultipliesBytes, !kMultipliesBytes);
}

void any_product(const Product& p, const int32_t* order, Rounding kept, int32_t dtype) {
    const Layout at(p.out, p.in, kept);
    Rows rows = rows_for(p.rows, at, kept.x_bits);
    round_rows(rows, p, p.rows, dtype, order);
    with_both(kept, [&](auto code, auto form) {
        multiply_panels(p, at.panels(), [&] { return Worker<code(), form()>{Results(p, dtype), rows, at}; });
    });
}

void any_grouped(const Product& p, const int64_t* counts, int64_t groups, Rounding kept, int32_t dtype) {
    const Layout at(p.out, p.in, kept);
    const Grouped own(counts, groups);
    Rows rows = rows_for(own.rows, at, kept.x_bits);
    round_rows(rows, p, own.rows, dtype);
    with_both(kept, [&](auto code, auto form) {
        multiply_groups(p, own, at.panels(), at.bytes(), [&] { return Worker<code(), form()>{Results(p, dtype), rows, at}; });
    });
}

}  // namespace

extern const QuantizedOps TABLE(quantized_);
const QuantizedOps TABLE(quantized_) = {any_pack, any_place, any_unpack, any_product, any_grouped};
