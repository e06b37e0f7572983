// GEMM with packed weights, and the packing; compiled once per instruction set.
//
// A weight [out, in] is packed in panels of 64 output rows; the last panel has as many tiles of
// sixteen as are left. A panel stores, unit after unit of the input, the units of all its rows, so
// it is read sequentially, once.
#define PAIRED_VECTORS
#include "cpu/gemm/linear.h"

#include <memory>

#include "cpu/variant.h"
#include "cpu/threading/parallel.h"
#include "cpu/gemm/panel_blocks.h"
#include "cpu/gemm/tile_products.h"
#include "cpu/gemm/wide_rows.h"

namespace {

constexpr int64_t kParallelProducts = 1 << 17;  // below this a second thread does not pay
constexpr int64_t kRowsAtOnce = 384;   // rows of x that fit a core's cache together with a panel

int64_t units_of(int64_t numbers, int64_t each) { return (numbers + each - 1) / each; }
int64_t padded_to_lanes(int64_t rows) { return (rows + kLanes - 1) / kLanes * kLanes; }
int64_t width_of(int64_t panel, int64_t rows) {
    const int64_t left = padded_to_lanes(rows) - panel * kPanel;
    return left < kPanel ? left : kPanel;
}

// --- packing
// ------------------------------------------------------------------------------------------------

// Packs one panel's part of rows [first, last), from a matrix with any strides.
template <typename T>
void pack_panel(T* to, const T* from, int64_t panel, int64_t first, int64_t last, Matrix source,
                int64_t rows) {
    constexpr int64_t each = Units<T>::kNumbers, block = 32;
    const int64_t width = width_of(panel, rows), units = units_of(source.width, each);
    T* base = to + panel * kPanel * units * each;
    const int64_t begin = first > panel * kPanel ? first : panel * kPanel;
    const int64_t end = last < panel * kPanel + width ? last : panel * kPanel + width;
    const int64_t whole = source.width / each, column = source.column_stride;
    for (int64_t at = 0; at < units; at += block) {
        const int64_t stop = at + block < whole ? at + block : whole;
        for (int64_t row = begin; row < end; ++row) {
            const T* numbers = from + (row - first) * source.row_stride;
            T* target = base + (row - panel * kPanel) * each;
            if (column == 1)
                for (int64_t unit = at; unit < stop; ++unit)
                    std::memcpy(target + unit * width * each, numbers + unit * each,
                                each * sizeof(T));
            else
                for (int64_t unit = at; unit < stop; ++unit)
                    for (int64_t i = 0; i < each; ++i)
                        target[unit * width * each + i] = numbers[(unit * each + i) * column];
            if (whole < units && at + block >= units) {  // half a pair
                target[whole * width * each] = numbers[whole * each * column];
                target[whole * width * each + 1] = T{};
            }
        }
    }
}

template <typename T>
void pack(void* to, const void* from, int64_t first, Matrix source, int64_t rows) {
    const int64_t last = first + source.rows, begin = first / kPanel;
    const int64_t count = source.rows ? (last - 1) / kPanel - begin + 1 : 0;
    run_workers(count, source.rows * source.width >= kParallelProducts, [=](WorkItems& items) {
        for (int64_t i; items.next(&i);)
            pack_panel(static_cast<T*>(to), static_cast<const T*>(from), begin + i, first, last,
                       source, rows);
    });
}

template <typename T>
void unpack(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width,
            int64_t rows) {
    constexpr int64_t each = Units<T>::kNumbers;
    run_workers(count, count * width >= kParallelProducts, [=](WorkItems& items) {
        for (int64_t i; items.next(&i);) {
            const int64_t panel = ids[i] / kPanel, width_here = width_of(panel, rows),
                          units = units_of(width, each);
            const T* from =
                static_cast<const T*>(weight) + (panel * kPanel * units + ids[i] % kPanel) * each;
            T* to = static_cast<T*>(out) + i * width;
            for (int64_t unit = 0; unit < width / each; ++unit)
                std::memcpy(to + unit * each, from + unit * width_here * each, each * sizeof(T));
            if (width % each) to[width - 1] = from[(units - 1) * width_here * each];
        }
    });
}

// --- products
// -----------------------------------------------------------------------------------------------

template <typename T>
const T* panel_of(const Product& p, int64_t panel) {
    constexpr int64_t each = Units<T>::kNumbers;
    return static_cast<const T*>(p.weight) + panel * kPanel * units_of(p.in, each) * each;
}

// Position of a panel in a worker's sequence.
struct PanelOrder {
    bool is_cold;   // not prefetched
    bool has_next;  // the worker continues with the next panel
};

// Iterates over the panels of one worker; items number `panels` panels for each part of the rows.
class PanelWalk {
public:
    PanelWalk(WorkItems& items, int64_t panels) : items_(items), panels_(panels) {}

    bool next(int64_t* item, PanelOrder* order) {
        if (!items_.next(item)) return false;
        *order = {*item != expected_, items_.has_next() && (*item + 1) % panels_ != 0};
        expected_ = order->has_next ? *item + 1 : -1;
        return true;
    }

private:
    WorkItems& items_;
    const int64_t panels_;
    int64_t expected_ = -1;
};

#if defined(TILE_REGISTERS)
// Up to R * 16 rows of x times one panel, C tiles at a time. The first C prefetch.
template <int R, int C>
void tiled_block(const Product& p, const BFloat16* weight, int64_t panel, int64_t first,
                 int64_t rows, Prefetch ahead) {
    const int64_t units = units_of(p.in, 2), width = width_of(panel, p.out);
    const BFloat16* bias = p.bias ? static_cast<const BFloat16*>(p.bias) + panel * kPanel : nullptr;
    const BFloat16* x = static_cast<const BFloat16*>(p.x) + first * p.x_stride;
    BFloat16* out = static_cast<BFloat16*>(p.result) + first * p.result_stride + panel * kPanel;
    const auto some = [&](auto number, int64_t column) {
        constexpr int count = decltype(number)::value;
        Floats sums[R * kTileRows][count];
        const BFloat16* tiles[count];
        for (int c = 0; c < count; ++c) tiles[c] = weight + (column + c * kLanes) * 2;
        const Prefetch own = column ? Prefetch() : ahead;
        multiply_in_tiles<R, count>(reinterpret_cast<float*>(sums), sizeof sums[0], rows, x,
                                    p.x_stride, tiles, width * 2, units,
                                    [&](int64_t unit, int64_t end) {
                                        for (; unit < end; ++unit) prefetch_unit(own, unit);
                                    });
        put<BFloat16, count>(out + column, p.result_stride, sums, rows,
                             bias ? bias + column : nullptr, p.out - panel * kPanel - column);
    };
    int64_t column = 0;
    for (; column + C * kLanes <= width; column += C * kLanes) some(Count<C>(), column);
    for (; column < width; column += kLanes) some(Count<1>(), column);
}

// Rows [first, last) of x times one panel, 32 at a time, or sixteen at the end.
void tiled_product(const Product& p, const BFloat16* weight, int64_t panel, int64_t first,
                   int64_t last, PanelOrder order) {
    constexpr int64_t max_rows = 2 * kTileRows;
    const int64_t blocks = (last - first + max_rows - 1) / max_rows,
                  unit = width_of(panel, p.out) * 4;
    const int64_t bytes = unit * units_of(p.in, 2);
    for (int64_t b = 0; b < blocks; ++b) {
        const int64_t from = first + (last - first) * b / blocks,
                      rows = first + (last - first) * (b + 1) / blocks - from;
        Prefetch ahead;
        const char* begin = reinterpret_cast<const char*>(weight);
        if (blocks == 1)
            ahead = {begin + kFetchAhead, unit};
        else if (b < 4 && order.has_next)
            ahead = {begin + bytes + b * (bytes / 4), unit / 4};
        rows > kTileRows ? tiled_block<2, 2>(p, weight, panel, from, rows, ahead)
                         : tiled_block<1, kTiles>(p, weight, panel, from, rows, ahead);
    }
}
#endif

// Returns what pass b of `blocks` over a panel prefetches. A single pass, or the first pass over a
// cold panel, prefetches further in the same panel; other passes prefetch their share of the next
// panel. Shares are equal or double, and cover the panel; only the first eight passes prefetch.
Prefetch prefetch_for(const char* panel, int64_t bytes, int64_t unit, int64_t b, int64_t blocks,
                      PanelOrder order) {
    if (blocks == 1 || (order.is_cold && b == 0)) return {panel + kFetchAhead, unit};
    if (!order.has_next) return {};
    if (order.is_cold) --b, --blocks;
    int64_t shares = 2;
    while (shares < blocks && shares < 8) shares *= 2;
    const int64_t larger = shares > blocks ? shares - blocks : 0,
                  first = b < larger ? 2 * b : larger + b;
    if (first >= shares) return {};
    return {panel + bytes + first * (bytes / shares), (b < larger ? 2 : 1) * unit / shares};
}

// Multiplies rows of one product by panels. Rows are split evenly, so that no block has a single
// row.
template <typename T>
class Worker {
public:
    // For up to max_rows rows at once.
    explicit Worker(int64_t max_rows) : chunked_(kWholePanels || !kWidensInput<T> ? 0 : max_rows) {}

    // Rows [first, last) of x, which p.x points to, times one panel.
    void multiply(const Product& p, const T* weight, int64_t panel, int64_t first, int64_t last,
                  PanelOrder order) const {
        const int64_t width = width_of(panel, p.out);
#if defined(TILE_REGISTERS)
        if constexpr (kTiled<T>)
            if (last - first >= kTiledRows)
                return tiled_product(p, weight, panel, first, last, order);
#endif
        const Panel<T> own = {weight, width, units_of(p.in, Units<T>::kNumbers)};
        const Destination<T> to = {
            static_cast<T*>(p.result) + first * p.result_stride + panel * kPanel, p.result_stride,
            p.bias ? static_cast<const T*>(p.bias) + panel * kPanel : nullptr,
            p.out - panel * kPanel};
        const Input<T>* x = static_cast<const Input<T>*>(p.x) + first * p.x_stride;
        if constexpr (kWholePanels || !kWidensInput<T>)
            in_whole_panels(to, x, p.x_stride, last - first, own, order);
        else
            chunked_.multiply(to, x, p.x_stride, last - first, own);
    }

private:
    static void in_whole_panels(const Destination<T>& to, const Input<T>* x, int64_t x_stride,
                                int64_t rows, const Panel<T>& panel, PanelOrder order) {
        constexpr int kMaxRows = kTiled<T> ? kRowsOf<T> : kBlockRows;
        in_even_blocks<kMaxRows>(rows, [&](auto count, int64_t row, int64_t b, int64_t blocks) {
            constexpr int R = decltype(count)::value;
            T* out = to.out + row * to.stride;
            if (panel.width == kPanel) {
                const char* begin = reinterpret_cast<const char*>(panel.from);
                const Prefetch ahead = prefetch_for(begin, panel.bytes(),
                                                    panel.bytes() / panel.units, b, blocks, order);
                constexpr int C = kWholePanels ? kTiles : kBlockTiles<R>;
                for (int64_t c = 0; c < kPanel; c += C * kLanes)
                    block<T, R, C>(out + c, to.stride, x + row * x_stride, x_stride,
                                   panel.tile(c, 0), panel.step(), panel.units,
                                   to.bias ? to.bias + c : nullptr, to.columns - c,
                                   c ? Prefetch() : ahead);
                return;
            }
            for (int64_t c = 0; c < panel.width; c += kLanes)
                block<T, R, 1>(out + c, to.stride, x + row * x_stride, x_stride, panel.tile(c, 0),
                               panel.step(), panel.units, to.bias ? to.bias + c : nullptr,
                               to.columns - c, Prefetch());
        });
    }

    const ChunkedPanel<T> chunked_;
};

template <typename T>
void product(const Product& plain) {
    const WideRows<T> x(plain, plain.rows);
    Product p = plain;
    p.x = x.from;
    p.x_stride = x.stride;
    const int64_t panels = (padded_to_lanes(p.out) + kPanel - 1) / kPanel;
    const int64_t parts = (p.rows + kRowsAtOnce - 1) / kRowsAtOnce;
    run_workers(panels * parts, p.rows * p.out * p.in >= kParallelProducts, [&](WorkItems& items) {
        const FlushDenormals flushed;
        const Worker<T> worker(p.rows);
        PanelWalk walk(items, panels);
        PanelOrder order;
        for (int64_t i; walk.next(&i, &order);) {
            const int64_t part = i / panels;
            const int64_t first = p.rows * part / parts, last = p.rows * (part + 1) / parts;
            worker.multiply(p, panel_of<T>(p, i % panels), i % panels, first, last, order);
        }
    });
}

// With a plain weight: packs panel by panel on the fly. Same summation order as with a packed
// weight.
template <typename T>
void plain_product(const Product& plain, Matrix weight) {
    constexpr int64_t each = Units<T>::kNumbers;
    const WideRows<T> x(plain, plain.rows);
    Product p = plain;
    p.x = x.from;
    p.x_stride = x.stride;
    const int64_t panels = (padded_to_lanes(p.out) + kPanel - 1) / kPanel;
    run_workers(panels, p.rows * p.out * p.in >= kParallelProducts, [&](WorkItems& items) {
        const FlushDenormals flushed;
        const Worker<T> worker(p.rows);
        std::unique_ptr<T[]> packed(new T[kPanel * units_of(p.in, each) * each]());
        for (int64_t i; items.next(&i);) {
            const int64_t first = i * kPanel,
                          last = first + kPanel < p.out ? first + kPanel : p.out;
            Matrix own = weight;
            own.rows = last - first;
            pack_panel(packed.get(), static_cast<const T*>(p.weight) + first * weight.row_stride, 0,
                       0, own.rows, own, p.out - first);
            worker.multiply(p, packed.get(), i, 0, p.rows, PanelOrder{false, false});
        }
    });
}

template <typename T>
void grouped(const Product& p, const int64_t* counts, int64_t groups) {
    const int64_t panels = (padded_to_lanes(p.out) + kPanel - 1) / kPanel;
    const int64_t size =
        padded_to_lanes(p.out) * units_of(p.in, Units<T>::kNumbers) * unit_bytes<T>();
    std::unique_ptr<Product[]> each(new Product[groups]);
    int64_t at = 0, max_rows = 0;
    for (int64_t group = 0; group < groups; ++group) {
        at += counts[group];
        max_rows = std::max(max_rows, counts[group]);
    }
    const WideRows<T> x(p, at);
    int64_t row = 0, count = 0;
    for (int64_t group = 0; group < groups; row += counts[group++]) {
        if (!counts[group]) continue;
        Product& own = each[count++] = p;
        own.rows = counts[group];
        own.x = x.from + row * x.stride;
        own.x_stride = x.stride;
        own.result = static_cast<T*>(p.result) + row * p.result_stride;
        own.weight = static_cast<const char*>(p.weight) + group * size;
    }
    run_workers(count * panels, at * p.out * p.in >= kParallelProducts, [&](WorkItems& items) {
        const FlushDenormals flushed;
        const Worker<T> worker(max_rows);
        PanelWalk walk(items, panels);
        PanelOrder order;
        for (int64_t i; walk.next(&i, &order);) {
            const Product& own = each[i / panels];
            worker.multiply(own, panel_of<T>(own, i % panels), i % panels, 0, own.rows, order);
        }
    });
}

// --- one function per element type, chosen by number
// --------------------------------------------------------

void any_pack(void* to, const void* from, int64_t first, Matrix source, int64_t rows,
              int32_t dtype) {
    auto run = dtype == kFloat32    ? pack<float>
               : dtype == kBFloat16 ? pack<BFloat16>
                                    : pack<Float16>;
    run(to, from, first, source, rows);
}

void any_unpack(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width,
                int64_t rows, int32_t dtype) {
    auto run = dtype == kFloat32    ? unpack<float>
               : dtype == kBFloat16 ? unpack<BFloat16>
                                    : unpack<Float16>;
    run(out, weight, ids, count, width, rows);
}

void any_product(const Product& p, int32_t dtype) {
    auto run = dtype == kFloat32    ? product<float>
               : dtype == kBFloat16 ? product<BFloat16>
                                    : product<Float16>;
    run(p);
}

void any_plain_product(const Product& p, Matrix weight, int32_t dtype) {
    auto run = dtype == kFloat32    ? plain_product<float>
               : dtype == kBFloat16 ? plain_product<BFloat16>
                                    : plain_product<Float16>;
    run(p, weight);
}

void any_grouped(const Product& p, const int64_t* counts, int64_t groups, int32_t dtype) {
    auto run = dtype == kFloat32    ? grouped<float>
               : dtype == kBFloat16 ? grouped<BFloat16>
                                    : grouped<Float16>;
    run(p, counts, groups);
}

}  // namespace

extern const LinearOps TABLE(linear_);
const LinearOps TABLE(linear_) = {any_pack, any_unpack, any_product, any_plain_product,
                                  any_grouped};
