// The C ABI of the library, and the choice of an instruction set when it is loaded.
#include <algorithm>
#include <cstring>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "cpu/attention.h"
#include "cpu/copying.h"
#include "cpu/elementwise.h"
#include "cpu/floats.h"
#include "cpu/linear.h"
#include "cpu/low_rank.h"
#include "cpu/pool.h"
#include "cpu/program.h"
#include "cpu/quantized.h"
#include "cpu/sampling.h"
#include "cpu/sharing.h"
#include "cpu/superblocks.h"
#include "cpu/tile_check.h"
#include "row_ops.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Variant {
    const char* name;
    bool usable;
    const RowOps* ops;
    const ElementOps* elements;
    const LinearOps* linear;
    const AttentionOps* attention;
    const SamplingOps* sampling;
    const QuantizedOps* quantized;
    const SuperblockOps* superblocks;
    const FloatOps* floats;
    const LowRankOps* low_rank;
};

// `products` names the variant of what multiplies in tile registers, where there are such: nothing else differs.
#define TABLES(isa, products)                                                                                     \
    &row_ops_##isa, &element_ops_##isa, &linear_##products, &attention_##products, &sampling_##isa, &quantized_##products, \
        &superblocks_##isa, &floats_##products, &low_rank_##isa

#if defined(__x86_64__)
// Whether tile registers are there but give other sums than they should: then they are not used.
bool tiles_differ = false;

bool tiles_usable() {
    if (!tile_check::allowed()) return false;
    tiles_differ = !tile_check::agrees(linear_amx, linear_amx) || !tile_check::agrees(quantized_amx, quantized_avx512_bf16);
    return !tiles_differ;
}
#endif

const Variant* variants() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    static const bool avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    static const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    static const bool pairs =
        avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    static const bool tiles = pairs && tiles_usable();
    static const Variant all[] = {{"amx", tiles, TABLES(avx512_bf16, amx)},
                                  {"avx512_bf16", pairs, TABLES(avx512_bf16, avx512_bf16)},
                                  {"avx512", avx512, TABLES(avx512, avx512)},
                                  {"avx2", avx2, TABLES(avx2, avx2)},
                                  {"generic", true, TABLES(generic, generic)},
                                  {"amx_emulated", pairs, TABLES(avx512_bf16, amx_emulated)},  // behind one that is usable
                                  {}};
#else
    static const Variant all[] = {{"generic", true, TABLES(generic, generic)}, {}};
#endif
    return all;
}

const Variant* best() {
    const Variant* variant = variants();
    while (!variant->usable) ++variant;
    return variant;
}

const Variant* named(const char* name) {
    for (const Variant* variant = variants(); variant->name; ++variant)
        if (variant->usable && std::strcmp(variant->name, name) == 0) return variant;
    return nullptr;
}

const Variant* chosen = best();

bool are_rows(const int64_t* ids, int64_t count, int64_t rows) {
    return std::all_of(ids, ids + count, [rows](int64_t id) { return 0 <= id && id < rows; });
}

}  // namespace

// Changes with any signature below; the loader refuses another number.
EXPORT int32_t core_kernels_abi() { return 9; }

EXPORT const char* core_kernels_isa() { return chosen->name; }

// Switches to another instruction set (tests compare them all). Returns 0 if this machine lacks it.
EXPORT int32_t core_kernels_use(const char* name) {
    const Variant* variant = named(name);
    if (variant) chosen = variant;
    return variant != nullptr;
}

// Whether many rows by the one instruction set are, bit by bit, single rows by the other. -1: this machine lacks one.
EXPORT int32_t core_kernels_agree(const char* many, const char* alone) {
    const Variant *first = named(many), *second = named(alone);
    if (!first || !second) return -1;
    return tile_check::agrees(*first->linear, *second->linear) && tile_check::agrees(*first->quantized, *second->quantized);
}

// What is to be said about the choice, or an empty text.
EXPORT const char* core_kernels_warning() {
#if defined(__x86_64__)
    if (tiles_differ) return "this processor's tile registers (AMX) give other sums than expected; AVX-512 is used instead";
#endif
    return "";
}

// Computes with so many threads from now on, the caller's own included.
EXPORT void core_kernels_threads(int64_t count) { pool::set_threads(count); }

EXPORT void core_rms_norm(void* out, const void* x, const void* weight, int64_t outer, int64_t inner, int64_t width,
                          int64_t outer_stride, int64_t inner_stride, float eps, float offset, int32_t dtype) {
    chosen->ops->rms_norm(out, x, weight, {outer, inner, width, outer_stride, inner_stride}, eps, offset, dtype);
}

EXPORT void core_add_rms_norm(void* x, void* residual, const void* weight, int64_t rows, int64_t width,
                              int64_t x_stride, int64_t residual_stride, float eps, float offset, int32_t dtype) {
    chosen->ops->add_rms_norm(x, residual, weight, {rows, 1, width, x_stride, 0}, residual_stride, eps, offset, dtype);
}

EXPORT void core_gated(void* out, const void* x, int64_t rows, int64_t width, int64_t x_stride, int32_t activation,
                       int32_t dtype) {
    chosen->ops->gated(out, x, {rows, 1, width, x_stride, 0}, activation, dtype);
}

EXPORT void core_rotary(void* x, const float* cos_sin, const int64_t* positions, int64_t tokens, int64_t heads,
                        int64_t head_size, int64_t token_stride, int64_t head_stride, int64_t rotary_size,
                        int32_t interleaved, int32_t dtype) {
    chosen->ops->rotary(x, cos_sin, positions, {tokens, heads, head_size, token_stride, head_stride}, rotary_size,
                        interleaved, dtype);
}

EXPORT void core_elementwise(void* out, const void* a, const void* b, int64_t rows, int64_t width, int64_t out_row,
                             int64_t a_row, int64_t b_row, int64_t b_column, float scalar, int32_t kind, int32_t dtype) {
    chosen->elements->elementwise({out, a, b, rows, width, out_row, a_row, b_row, b_column, scalar}, kind, dtype);
}

EXPORT void core_layer_norm(void* out, const void* x, const void* weight, const void* bias, int64_t outer, int64_t inner,
                            int64_t width, int64_t outer_stride, int64_t inner_stride, float eps, int32_t dtype) {
    chosen->elements->layer_norm(out, x, weight, bias, {outer, inner, width, outer_stride, inner_stride}, eps, dtype);
}

// Rows of a plain table, of so many bytes each. Returns 1, and writes nothing, where an id is none of the rows.
EXPORT int32_t core_take_rows(void* out, const void* table, const int64_t* ids, int64_t count, int64_t rows, int64_t bytes,
                              int64_t stride_bytes) {
    if (!are_rows(ids, count, rows)) return 1;
    for (int64_t i = 0; i < count; ++i)
        std::memcpy(static_cast<char*>(out) + i * bytes, static_cast<const char*>(table) + ids[i] * stride_bytes, bytes);
    return 0;
}

EXPORT void core_copy_summed(void* const* to, const void* const* from, const int64_t* sizes, int64_t count, uint64_t* sums) {
    copying::summed(to, from, sizes, count, sums);
}

EXPORT void core_widen(float* out, const void* x, int64_t rows, int64_t width, int64_t x_stride, int32_t dtype) {
    chosen->ops->widen(out, x, {rows, 1, width, x_stride, 0}, dtype);
}

EXPORT void core_best(float* values, int64_t* tokens, const float* logits, int64_t rows, int64_t width, int64_t row_stride) {
    chosen->sampling->best(values, tokens, {logits, rows, width, row_stride});
}

EXPORT void core_draw(int64_t* tokens, const float* logits, const double* uniform, int64_t rows, int64_t width,
                      int64_t row_stride) {
    chosen->sampling->draw(tokens, {logits, rows, width, row_stride}, uniform);
}

EXPORT void core_pack(void* to, const void* from, int64_t first, int64_t count, int64_t width, int64_t row_stride,
                      int64_t column_stride, int64_t rows, int32_t dtype) {
    chosen->linear->pack(to, from, first, {count, width, row_stride, column_stride}, rows, dtype);
}

// Returns 1, and writes nothing, where an id is none of the rows.
EXPORT int32_t core_unpack(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width, int64_t rows,
                           int32_t dtype) {
    if (!are_rows(ids, count, rows)) return 1;
    chosen->linear->unpack(out, weight, ids, count, width, rows, dtype);
    return 0;
}

EXPORT void core_linear(void* out, const void* x, const void* weight, const void* bias, int64_t rows, int64_t out_size,
                        int64_t in_size, int64_t x_stride, int64_t out_stride, int32_t dtype) {
    chosen->linear->product({out, x, weight, bias, rows, out_size, in_size, x_stride, out_stride}, dtype);
}

EXPORT void core_plain_linear(void* out, const void* x, const void* weight, const void* bias, int64_t rows,
                              int64_t out_size, int64_t in_size, int64_t x_stride, int64_t row_stride,
                              int64_t column_stride, int32_t dtype) {
    chosen->linear->plain_product({out, x, weight, bias, rows, out_size, in_size, x_stride, out_size},
                                  {out_size, in_size, row_stride, column_stride}, dtype);
}

EXPORT void core_grouped_linear(void* out, const void* x, const void* weights, const int64_t* counts, int64_t groups,
                                int64_t out_size, int64_t in_size, int64_t x_stride, int64_t out_stride, int32_t dtype) {
    chosen->linear->grouped({out, x, weights, nullptr, 0, out_size, in_size, x_stride, out_stride}, counts, groups, dtype);
}

EXPORT void core_quantize(void* to, const void* from, int64_t first, int64_t count, int64_t width, int64_t row_stride,
                          int64_t column_stride, int64_t rows, int64_t code, int64_t group, int32_t dtype) {
    const Rounding kept = {code, group, kBFloat16Scales, kNoZeros};
    chosen->quantized->pack(to, from, first, {count, width, row_stride, column_stride}, rows, kept, dtype);
}

// The same for codes, with scales [count, groups] of one kind, zero points or null of another, and the factors of rows or null.
EXPORT void core_quantized_place(void* to, const int8_t* codes, const void* scales, const uint16_t* zeros,
                                 const float* factors, int64_t first, int64_t count, int64_t width, int64_t row_stride,
                                 int64_t rows, int64_t code, int64_t group, int64_t scale_kind, int64_t zero_kind) {
    chosen->quantized->place(to, codes, scales, zeros, factors, first, {count, width, row_stride, 1}, rows,
                             {code, group, scale_kind, zero_kind});
}

// Returns 1, and writes nothing, where an id is none of the rows.
EXPORT int32_t core_quantized_rows(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width,
                                   int64_t rows, int64_t code, int64_t group, int64_t scales, int64_t zeros,
                                   int32_t dtype) {
    if (!are_rows(ids, count, rows)) return 1;
    chosen->quantized->unpack(out, weight, ids, count, width, rows, {code, group, scales, zeros}, dtype);
    return 0;
}

// `order`, or null, names the number of x for each of a weight's row.
EXPORT void core_quantized_linear(void* out, const void* x, const void* weight, const int32_t* order, int64_t rows,
                                  int64_t out_size, int64_t in_size, int64_t x_stride, int64_t code, int64_t group,
                                  int64_t scales, int64_t zeros, int64_t x_bits, int32_t dtype) {
    chosen->quantized->product({out, x, weight, nullptr, rows, out_size, in_size, x_stride, out_size}, order,
                               {code, group, scales, zeros, x_bits}, dtype);
}

EXPORT void core_quantized_grouped(void* out, const void* x, const void* weights, const int64_t* counts, int64_t groups,
                                   int64_t out_size, int64_t in_size, int64_t x_stride, int64_t code, int64_t group,
                                   int64_t scales, int64_t zeros, int64_t x_bits, int32_t dtype) {
    chosen->quantized->grouped({out, x, weights, nullptr, 0, out_size, in_size, x_stride, out_size}, counts, groups,
                               {code, group, scales, zeros, x_bits}, dtype);
}

// Puts floats of eight bits, bytes row_stride apart, with scales [count, groups], to rows from `first` on. Scales are float32,
// bfloat16, or int16, shares of the factors of rows, which else are null.
EXPORT void core_floats_place(void* to, const uint8_t* codes, const void* scales, const float* factors, int64_t first,
                              int64_t count, int64_t width, int64_t row_stride, int64_t rows, int64_t group,
                              int64_t scale_kind, int32_t kind) {
    chosen->floats->place(to, codes, scales, factors, first, {count, width, row_stride, 1}, rows, {kind, group, scale_kind});
}

// Returns 1, and writes nothing, where an id is none of the rows.
EXPORT int32_t core_floats_rows(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width,
                                int64_t rows, int64_t group, int64_t scale_kind, int32_t kind, const float* table,
                                int32_t dtype) {
    if (!are_rows(ids, count, rows)) return 1;
    chosen->floats->unpack(out, weight, ids, count, width, rows, {kind, group, scale_kind, table}, dtype);
    return 0;
}

EXPORT void core_floats_linear(void* out, const void* x, const void* weight, int64_t rows, int64_t out_size,
                               int64_t in_size, int64_t x_stride, int64_t group, int64_t scale_kind, int32_t kind,
                               const float* table, int32_t dtype) {
    chosen->floats->product({out, x, weight, nullptr, rows, out_size, in_size, x_stride, out_size}, {kind, group, scale_kind, table}, dtype);
}

EXPORT void core_floats_grouped(void* out, const void* x, const void* weights, const int64_t* counts, int64_t groups,
                                int64_t out_size, int64_t in_size, int64_t x_stride, int64_t group, int64_t scale_kind,
                                int32_t kind, const float* table, int32_t dtype) {
    chosen->floats->grouped({out, x, weights, nullptr, 0, out_size, in_size, x_stride, out_size}, counts, groups,
                            {kind, group, scale_kind, table}, dtype);
}

// Returns 1, and writes nothing, for a kind of block that is not kept.
EXPORT int32_t core_superblock_pack(void* to, const void* from, int64_t first, int64_t count, int64_t blocks,
                                    int64_t row_stride, int64_t rows, int32_t kind) {
    return chosen->superblocks->pack(to, {static_cast<const uint8_t*>(from), count, blocks, row_stride}, first, rows, kind);
}

// Returns 1, and writes nothing, where an id is none of the rows.
EXPORT int32_t core_superblock_rows(void* out, const void* weight, const int64_t* ids, int64_t count, int64_t width,
                                    int64_t rows, int32_t kind, int32_t dtype) {
    if (!are_rows(ids, count, rows)) return 1;
    chosen->superblocks->unpack(out, weight, ids, count, width, rows, kind, dtype);
    return 0;
}

EXPORT void core_superblock_linear(void* out, const void* x, const void* weight, int64_t rows, int64_t out_size,
                                   int64_t in_size, int64_t x_stride, int64_t out_stride, int32_t kind, int32_t x_bits,
                                   int32_t dtype) {
    chosen->superblocks->product({out, x, weight, nullptr, rows, out_size, in_size, x_stride, out_stride}, {kind, x_bits},
                                 dtype);
}

EXPORT void core_superblock_grouped(void* out, const void* x, const void* weights, const int64_t* counts, int64_t groups,
                                    int64_t out_size, int64_t in_size, int64_t x_stride, int64_t out_stride, int32_t kind,
                                    int32_t x_bits, int32_t dtype) {
    chosen->superblocks->grouped({out, x, weights, nullptr, 0, out_size, in_size, x_stride, out_stride}, counts, groups,
                                 {kind, x_bits}, dtype);
}

// Adds to out what the adapter of each row makes of x.
EXPORT void core_low_rank(void* out, const void* x, const int32_t* adapters, const LowRank* table, int64_t num_adapters,
                          int64_t rows, int64_t in_size, int64_t out_size, int64_t x_stride, int64_t out_stride,
                          int32_t dtype) {
    chosen->low_rank->add({out, x, adapters, table, num_adapters, rows, in_size, out_size, x_stride, out_stride}, dtype);
}

// Fills the step's `order` and `shared`, which all layers of a group read; before the first of them.
EXPORT void core_plan_attention(const PagedAttention* step, int64_t* order, int64_t* shared) {
    find_shared(order, shared, step->tables, step->lengths, step->sequences, step->table_stride, step->block_size);
}

EXPORT void core_paged_attention(const PagedAttention* layer) { chosen->attention->attend(*layer); }

// The same layer in another step: `*step` tells of its sequences.
EXPORT void core_paged_attention_again(const PagedAttention* layer, const PagedAttention* const* step) {
    chosen->attention->attend(in_step(*layer, **step));
}

// Asks the system for large pages; without them the same memory is only slower.
EXPORT void core_large_pages(void* start, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    madvise(start, static_cast<size_t>(bytes), MADV_HUGEPAGE);
#else
    (void)start, (void)bytes;
#endif
}

// Has memory's pages taken without changing what others write there meanwhile.
EXPORT void core_touch(void* start, int64_t bytes) {
    constexpr int64_t kPage = 4096;
    for (int64_t at = 0; at < bytes; at += kPage) __atomic_fetch_or(static_cast<char*>(start) + at, 0, __ATOMIC_RELAXED);
}

// --- programs -----------------------------------------------------------------------------------------------

namespace {

struct Named {
    const char* name;
    program::Callable callable;
};

#define NAMED(function) {#function, program::call<&function>}

const Named callables[] = {
    NAMED(core_rms_norm), NAMED(core_add_rms_norm), NAMED(core_layer_norm), NAMED(core_gated),
    NAMED(core_rotary), NAMED(core_elementwise), NAMED(core_take_rows), NAMED(core_unpack), NAMED(core_linear),
    NAMED(core_plain_linear), NAMED(core_quantized_rows), NAMED(core_quantized_linear), NAMED(core_superblock_rows),
    NAMED(core_superblock_linear), NAMED(core_floats_rows), NAMED(core_floats_linear), NAMED(core_low_rank),
    NAMED(core_paged_attention_again),
};

}  // namespace

// The number by which a program calls a function; -1: it cannot.
EXPORT int64_t core_program_number(const char* name) {
    int64_t number = 0;
    for (const Named& each : callables) {
        if (std::strcmp(each.name, name) == 0) return number;
        ++number;
    }
    return -1;
}

// Makes all calls in their order. Returns -1, or the number of the one that says that something is wrong.
EXPORT int64_t core_program_run(const Call* calls, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
        if (callables[calls[i].function].callable(calls[i].arguments) != 0) return i;
    return -1;
}
