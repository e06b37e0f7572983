// The C ABI of the library, and the selection of an instruction set at load time.
#include <algorithm>
#include <cstring>
#include <string>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "cpu/attention/attention.h"
#include "cpu/attention/selection.h"
#include "cpu/elementwise/checksum_copy.h"
#include "cpu/elementwise/elementwise.h"
#include "cpu/quant/floats.h"
#include "cpu/gemm/linear.h"
#include "cpu/gemm/low_rank.h"
#include "cpu/threading/pool.h"
#include "cpu/processor.h"
#include "cpu/program.h"
#include "cpu/quant/quantized.h"
#include "cpu/elementwise/sampling.h"
#include "cpu/attention/shared_prefix.h"
#include "cpu/quant/superblocks.h"
#include "cpu/gemm/tile_check.h"
#include "cpu/elementwise/row_ops.h"

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
    const SelectionOps* selection;
};

// The tables of one variant, some of them shared with another one (build.py lists which sources are
// compiled for each): `products` for tile registers or bfloat16, `integers` and `blocks` for
// integer products.
#define TABLES(isa, products, integers, blocks)                                            \
    &row_ops_##isa, &element_ops_##isa, &linear_##products, &attention_##products,         \
        &sampling_##isa, &quantized_##integers, &superblocks_##blocks, &floats_##products, \
        &low_rank_##isa, &selection_##isa
#define OWN_TABLES(isa) TABLES(isa, isa, isa, isa)

// True if the tile registers exist but give different sums; then they are not used.
bool tiles_differ = false;

#if defined(BUILT_amx)
bool tiles_usable() {
    if (!processor::runs("amx")) return false;
    tiles_differ = !tile_check::results_match(linear_amx, linear_amx) ||
                   !tile_check::results_match(quantized_amx, quantized_avx512_bf16);
    return !tiles_differ;
}
#endif

// What this library was built with, the fastest first.
const Variant* variants() {
    static const Variant all[] = {
#if defined(BUILT_amx)
        {"amx", tiles_usable(), TABLES(avx512_bf16, amx, amx, avx512_bf16)},
#endif
#if defined(BUILT_avx512_bf16)
        {"avx512_bf16", processor::runs("avx512_bf16"), OWN_TABLES(avx512_bf16)},
#endif
#if defined(BUILT_avx512_vnni)
        {"avx512_vnni", processor::runs("avx512_vnni"),
         TABLES(avx512, avx512, avx512_vnni, avx512_vnni)},
#endif
#if defined(BUILT_avx512)
        {"avx512", processor::runs("avx512"), OWN_TABLES(avx512)},
#endif
#if defined(BUILT_avx2_vnni)
        {"avx2_vnni", processor::runs("avx2_vnni"), TABLES(avx2, avx2, avx2_vnni, avx2_vnni)},
#endif
#if defined(BUILT_avx2)
        {"avx2", processor::runs("avx2"), OWN_TABLES(avx2)},
#endif
#if defined(BUILT_neon_bf16)
        {"neon_bf16", processor::runs("neon_bf16"),
         TABLES(generic, neon_bf16, generic, neon_i8mm)},
#endif
#if defined(BUILT_neon_i8mm)
        {"neon_i8mm", processor::runs("neon_i8mm"),
         TABLES(generic, generic, generic, neon_i8mm)},
#endif
#if defined(BUILT_neon_dotprod)
        {"neon_dotprod", processor::runs("neon_dotprod"),
         TABLES(generic, generic, generic, neon_dotprod)},
#endif
#if defined(BUILT_generic)
        {"generic", true, OWN_TABLES(generic)},
#endif
#if defined(BUILT_amx_emulated)  // after a usable one, so only selected by name
        {"amx_emulated", processor::runs("amx_emulated"),
         TABLES(avx512_bf16, amx_emulated, amx_emulated, avx512_bf16)},
#endif
        {}};
    return all;
}

// The fastest usable variant, or the empty one that ends the list.
const Variant* best() {
    const Variant* variant = variants();
    while (variant->name && !variant->usable) ++variant;
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

// Bump it with any change of a signature below; the loader refuses another number.
EXPORT int32_t core_kernels_abi() { return 13; }

// Empty if the library was built without a variant that this processor runs.
EXPORT const char* core_kernels_isa() { return chosen->name ? chosen->name : ""; }

// The variants that the library was built with, the fastest first, with spaces between them.
EXPORT const char* core_kernels_variants() {
    static const std::string names = [] {
        std::string joined;
        for (const Variant* variant = variants(); variant->name; ++variant)
            joined += (joined.empty() ? "" : " ") + std::string(variant->name);
        return joined;
    }();
    return names.c_str();
}

// The hash of the sources (build.py) that the library was compiled from.
EXPORT const char* core_kernels_sources() { return SOURCE_HASH; }

// Selects another instruction set (tests compare all). Returns 0 if the processor or library
// lacks it.
EXPORT int32_t core_kernels_use(const char* name) {
    const Variant* variant = named(name);
    if (variant) chosen = variant;
    return variant != nullptr;
}

// Compares products of many rows on one instruction set with those of single rows on the other, bit
// by bit. Returns -1 if the processor or the library lacks one.
EXPORT int32_t core_kernels_match(const char* many, const char* alone) {
    const Variant *first = named(many), *second = named(alone);
    if (!first || !second) return -1;
    return tile_check::results_match(*first->linear, *second->linear) &&
           tile_check::results_match(*first->quantized, *second->quantized);
}

// A warning about the selection, or an empty string.
EXPORT const char* core_kernels_warning() {
    if (tiles_differ)
        return "this processor's tile registers (AMX) give unexpected sums; AVX-512 is used";
    return "";
}

// Sets the number of compute threads, the caller's included.
EXPORT void core_kernels_threads(int64_t count) { pool::set_threads(count); }

EXPORT void core_rms_norm(void* out, const void* x, const void* weight, int64_t outer,
                          int64_t inner, int64_t width, int64_t outer_stride, int64_t inner_stride,
                          float eps, float offset, int32_t dtype) {
    chosen->ops->rms_norm(out, x, weight, {outer, inner, width, outer_stride, inner_stride}, eps,
                          offset, dtype);
}

EXPORT void core_add_rms_norm(void* x, void* residual, const void* weight, int64_t rows,
                              int64_t width, int64_t x_stride, int64_t residual_stride, float eps,
                              float offset, int32_t dtype) {
    chosen->ops->add_rms_norm(x, residual, weight, {rows, 1, width, x_stride, 0}, residual_stride,
                              eps, offset, dtype);
}

EXPORT void core_gated(void* out, const void* x, int64_t rows, int64_t width, int64_t x_stride,
                       int32_t activation, int32_t dtype) {
    chosen->ops->gated(out, x, {rows, 1, width, x_stride, 0}, activation, dtype);
}

EXPORT void core_rotary(void* x, const float* cos_sin, const int64_t* positions, int64_t tokens,
                        int64_t heads, int64_t head_size, int64_t token_stride, int64_t head_stride,
                        int64_t rotary_size, int32_t interleaved, int32_t dtype) {
    chosen->ops->rotary(x, cos_sin, positions,
                        {tokens, heads, head_size, token_stride, head_stride}, rotary_size,
                        interleaved, dtype);
}

EXPORT void core_elementwise(void* out, const void* a, const void* b, int64_t rows, int64_t width,
                             int64_t out_row, int64_t a_row, int64_t b_row, int64_t b_column,
                             float scalar, int32_t kind, int32_t dtype) {
    chosen->elements->elementwise({out, a, b, rows, width, out_row, a_row, b_row, b_column, scalar},
                                  kind, dtype);
}

EXPORT void core_layer_norm(void* out, const void* x, const void* weight, const void* bias,
                            int64_t outer, int64_t inner, int64_t width, int64_t outer_stride,
                            int64_t inner_stride, float eps, int32_t dtype) {
    chosen->elements->layer_norm(out, x, weight, bias,
                                 {outer, inner, width, outer_stride, inner_stride}, eps, dtype);
}

// Gathers rows of a plain table, `bytes` each. Returns 1, and writes nothing, if an id is out of
// range.
EXPORT int32_t core_take_rows(void* out, const void* table, const int64_t* ids, int64_t count,
                              int64_t rows, int64_t bytes, int64_t stride_bytes) {
    if (!are_rows(ids, count, rows)) return 1;
    for (int64_t i = 0; i < count; ++i)
        std::memcpy(static_cast<char*>(out) + i * bytes,
                    static_cast<const char*>(table) + ids[i] * stride_bytes, bytes);
    return 0;
}

EXPORT void core_checksum_copy(void* const* to, const void* const* from, const int64_t* sizes,
                               int64_t count, uint64_t* sums) {
    checksum_copy::copy(to, from, sizes, count, sums);
}

EXPORT void core_widen(float* out, const void* x, int64_t rows, int64_t width, int64_t x_stride,
                       int32_t dtype) {
    chosen->ops->widen(out, x, {rows, 1, width, x_stride, 0}, dtype);
}

EXPORT void core_argmax(float* values, int64_t* tokens, const float* logits, int64_t rows,
                        int64_t width, int64_t row_stride) {
    chosen->sampling->argmax(values, tokens, {logits, rows, width, row_stride});
}

EXPORT void core_sample(int64_t* tokens, const float* logits, const double* uniform, int64_t rows,
                        int64_t width, int64_t row_stride) {
    chosen->sampling->sample(tokens, {logits, rows, width, row_stride}, uniform);
}

EXPORT void core_pack(void* to, const void* from, int64_t first, int64_t count, int64_t width,
                      int64_t row_stride, int64_t column_stride, int64_t rows, int32_t dtype) {
    chosen->linear->pack(to, from, first, {count, width, row_stride, column_stride}, rows, dtype);
}

// Returns 1, and writes nothing, if an id is out of range.
EXPORT int32_t core_unpack(void* out, const void* weight, const int64_t* ids, int64_t count,
                           int64_t width, int64_t rows, int32_t dtype) {
    if (!are_rows(ids, count, rows)) return 1;
    chosen->linear->unpack(out, weight, ids, count, width, rows, dtype);
    return 0;
}

EXPORT void core_linear(void* out, const void* x, const void* weight, const void* bias,
                        int64_t rows, int64_t out_size, int64_t in_size, int64_t x_stride,
                        int64_t out_stride, int32_t dtype) {
    chosen->linear->product({out, x, weight, bias, rows, out_size, in_size, x_stride, out_stride},
                            dtype);
}

EXPORT void core_plain_linear(void* out, const void* x, const void* weight, const void* bias,
                              int64_t rows, int64_t out_size, int64_t in_size, int64_t x_stride,
                              int64_t row_stride, int64_t column_stride, int32_t dtype) {
    chosen->linear->plain_product(
        {out, x, weight, bias, rows, out_size, in_size, x_stride, out_size},
        {out_size, in_size, row_stride, column_stride}, dtype);
}

EXPORT void core_grouped_linear(void* out, const void* x, const void* weights,
                                const int64_t* counts, int64_t groups, int64_t out_size,
                                int64_t in_size, int64_t x_stride, int64_t out_stride,
                                int32_t dtype) {
    chosen->linear->grouped({out, x, weights, nullptr, 0, out_size, in_size, x_stride, out_stride},
                            counts, groups, dtype);
}

EXPORT void core_quantize(void* to, const void* from, int64_t first, int64_t count, int64_t width,
                          int64_t row_stride, int64_t column_stride, int64_t rows, int64_t code,
                          int64_t group, int32_t dtype) {
    const IntegerFormat format = {code, group, kBFloat16Scales, kNoZeros};
    chosen->quantized->pack(to, from, first, {count, width, row_stride, column_stride}, rows,
                            format, dtype);
}

// Packs integer codes with scales [count, groups], zero points (or null) and row factors (or null).
EXPORT void core_quantized_pack_codes(void* to, const int8_t* codes, const void* scales,
                                      const uint16_t* zeros, const float* factors, int64_t first,
                                      int64_t count, int64_t width, int64_t row_stride,
                                      int64_t rows, int64_t code, int64_t group, int64_t scale_kind,
                                      int64_t zero_kind) {
    chosen->quantized->pack_codes(to, codes, scales, zeros, factors, first,
                                  {count, width, row_stride, 1}, rows,
                                  {code, group, scale_kind, zero_kind});
}

// Returns 1, and writes nothing, if an id is out of range.
EXPORT int32_t core_quantized_rows(void* out, const void* weight, const int64_t* ids, int64_t count,
                                   int64_t width, int64_t rows, int64_t code, int64_t group,
                                   int64_t scales, int64_t zeros, int32_t dtype) {
    if (!are_rows(ids, count, rows)) return 1;
    chosen->quantized->unpack(out, weight, ids, count, width, rows, {code, group, scales, zeros},
                              dtype);
    return 0;
}

// `order`, or null: index into x for each column of the weight.
EXPORT void core_quantized_linear(void* out, const void* x, const void* weight,
                                  const int32_t* order, int64_t rows, int64_t out_size,
                                  int64_t in_size, int64_t x_stride, int64_t code, int64_t group,
                                  int64_t scales, int64_t zeros, int64_t x_bits, int32_t dtype) {
    chosen->quantized->product(
        {out, x, weight, nullptr, rows, out_size, in_size, x_stride, out_size}, order,
        {code, group, scales, zeros, x_bits}, dtype);
}

EXPORT void core_quantized_grouped(void* out, const void* x, const void* weights,
                                   const int64_t* counts, int64_t groups, int64_t out_size,
                                   int64_t in_size, int64_t x_stride, int64_t code, int64_t group,
                                   int64_t scales, int64_t zeros, int64_t x_bits, int32_t dtype) {
    chosen->quantized->grouped({out, x, weights, nullptr, 0, out_size, in_size, x_stride, out_size},
                               counts, groups, {code, group, scales, zeros, x_bits}, dtype);
}

// Packs eight-bit floats, row_stride bytes apart, with scales [count, groups] into rows from
// `first`. Scales are float32, powers of two, or int16 fractions of `factors` (null otherwise).
EXPORT void core_floats_pack_codes(void* to, const uint8_t* codes, const void* scales,
                                   const float* factors, int64_t first, int64_t count,
                                   int64_t width, int64_t row_stride, int64_t rows, int64_t group,
                                   int64_t scale_kind, int32_t kind) {
    chosen->floats->pack_codes(to, codes, scales, factors, first, {count, width, row_stride, 1},
                               rows, {kind, group, scale_kind});
}

// Returns 1, and writes nothing, if an id is out of range.
EXPORT int32_t core_floats_rows(void* out, const void* weight, const int64_t* ids, int64_t count,
                                int64_t width, int64_t rows, int64_t group, int64_t scale_kind,
                                int32_t kind, const float* table, int32_t dtype) {
    if (!are_rows(ids, count, rows)) return 1;
    chosen->floats->unpack(out, weight, ids, count, width, rows, {kind, group, scale_kind, table},
                           dtype);
    return 0;
}

EXPORT void core_floats_linear(void* out, const void* x, const void* weight, int64_t rows,
                               int64_t out_size, int64_t in_size, int64_t x_stride, int64_t group,
                               int64_t scale_kind, int32_t kind, const float* table,
                               int32_t dtype) {
    chosen->floats->product({out, x, weight, nullptr, rows, out_size, in_size, x_stride, out_size},
                            {kind, group, scale_kind, table}, dtype);
}

EXPORT void core_floats_grouped(void* out, const void* x, const void* weights,
                                const int64_t* counts, int64_t groups, int64_t out_size,
                                int64_t in_size, int64_t x_stride, int64_t group,
                                int64_t scale_kind, int32_t kind, const float* table,
                                int32_t dtype) {
    chosen->floats->grouped({out, x, weights, nullptr, 0, out_size, in_size, x_stride, out_size},
                            counts, groups, {kind, group, scale_kind, table}, dtype);
}

// Returns 1, and writes nothing, for an unsupported block kind.
EXPORT int32_t core_superblock_pack(void* to, const void* from, int64_t first, int64_t count,
                                    int64_t blocks, int64_t row_stride, int64_t rows,
                                    int32_t kind) {
    return chosen->superblocks->pack(
        to, {static_cast<const uint8_t*>(from), count, blocks, row_stride}, first, rows, kind);
}

// Returns 1, and writes nothing, if an id is out of range.
EXPORT int32_t core_superblock_rows(void* out, const void* weight, const int64_t* ids,
                                    int64_t count, int64_t width, int64_t rows, int32_t kind,
                                    int32_t dtype) {
    if (!are_rows(ids, count, rows)) return 1;
    chosen->superblocks->unpack(out, weight, ids, count, width, rows, kind, dtype);
    return 0;
}

EXPORT void core_superblock_linear(void* out, const void* x, const void* weight, int64_t rows,
                                   int64_t out_size, int64_t in_size, int64_t x_stride,
                                   int64_t out_stride, int32_t kind, int32_t x_bits,
                                   int32_t dtype) {
    chosen->superblocks->product(
        {out, x, weight, nullptr, rows, out_size, in_size, x_stride, out_stride}, {kind, x_bits},
        dtype);
}

EXPORT void core_superblock_grouped(void* out, const void* x, const void* weights,
                                    const int64_t* counts, int64_t groups, int64_t out_size,
                                    int64_t in_size, int64_t x_stride, int64_t out_stride,
                                    int32_t kind, int32_t x_bits, int32_t dtype) {
    chosen->superblocks->grouped(
        {out, x, weights, nullptr, 0, out_size, in_size, x_stride, out_stride}, counts, groups,
        {kind, x_bits}, dtype);
}

// Adds the LoRA delta of each row's adapter to `out`.
EXPORT void core_low_rank(void* out, const void* x, const int32_t* adapters, const LowRank* table,
                          int64_t num_adapters, int64_t rows, int64_t in_size, int64_t out_size,
                          int64_t x_stride, int64_t out_stride, int32_t dtype) {
    chosen->low_rank->add(
        {out, x, adapters, table, num_adapters, rows, in_size, out_size, x_stride, out_stride},
        dtype);
}

// Fills the step's `order` and `shared`, which all layers of a group read. Call it before the first
// layer.
EXPORT void core_plan_attention(const PagedAttention* step, int64_t* order, int64_t* shared) {
    find_shared(order, shared, step->tables, step->lengths, step->sequences, step->table_stride,
                step->block_size);
}

EXPORT void core_paged_attention(const PagedAttention* layer) { chosen->attention->attend(*layer); }

// Runs the same layer with the sequences of another step.
EXPORT void core_paged_attention_replay(const PagedAttention* layer,
                                        const PagedAttention* const* step) {
    chosen->attention->attend(with_step(*layer, **step));
}

// Selects tokens of one sequence by their index keys (attention/selection.h).
EXPORT void core_select_tokens(const TokenSelection* a, int32_t dtype) {
    chosen->selection->select(*a, dtype);
}

// Copies keys of one sequence from a cache in the unit layout to tiles of their own.
EXPORT void core_copy_keys(void* to, const void* cache, const int32_t* table,
                           const int32_t* positions, int64_t count, int64_t block_size,
                           int64_t size, int32_t dtype) {
    chosen->selection->copy_keys({to, cache, table, positions, count, block_size, size}, dtype);
}

// Requests huge pages; without them the same memory is only slower.
EXPORT void core_large_pages(void* start, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    madvise(start, static_cast<size_t>(bytes), MADV_HUGEPAGE);
#else
    (void)start, (void)bytes;
#endif
}

// Faults the pages in without changing data that other threads write.
EXPORT void core_touch(void* start, int64_t bytes) {
    constexpr int64_t kPage = 4096;
    for (int64_t at = 0; at < bytes; at += kPage)
        __atomic_fetch_or(static_cast<char*>(start) + at, 0, __ATOMIC_RELAXED);
}

// --- programs
// -----------------------------------------------------------------------------------------------

namespace {

struct Named {
    const char* name;
    program::Callable callable;
};

#define NAMED(function) {#function, program::call<&function>}

const Named callables[] = {
    NAMED(core_rms_norm),        NAMED(core_add_rms_norm),
    NAMED(core_layer_norm),      NAMED(core_gated),
    NAMED(core_rotary),          NAMED(core_elementwise),
    NAMED(core_take_rows),       NAMED(core_unpack),
    NAMED(core_linear),          NAMED(core_plain_linear),
    NAMED(core_quantized_rows),  NAMED(core_quantized_linear),
    NAMED(core_superblock_rows), NAMED(core_superblock_linear),
    NAMED(core_floats_rows),     NAMED(core_floats_linear),
    NAMED(core_low_rank),        NAMED(core_paged_attention_replay),
};

}  // namespace

// Returns the index of a callable for programs; -1 if it cannot be recorded.
EXPORT int64_t core_program_number(const char* name) {
    int64_t number = 0;
    for (const Named& each : callables) {
        if (std::strcmp(each.name, name) == 0) return number;
        ++number;
    }
    return -1;
}

// Runs all calls in order. Returns -1, or the index of the call that failed.
EXPORT int64_t core_program_run(const Call* calls, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
        if (callables[calls[i].function].callable(calls[i].arguments) != 0) return i;
    return -1;
}
