// Runs the functions of a variant of the library over a grid of shapes and writes their results, as
// float32, to standard output: for each a line with its name and count, then its numbers. Inputs
// are equal on every machine, so that results of two architectures can be compared.
//
// Ends with 1 if a row's product depends on the rows next to it, and with 2 if the processor or the
// library lacks the variant. Without an argument it only writes the processor's best variant.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cpu/attention/attention.h"
#include "cpu/attention/selection.h"
#include "cpu/elementwise/elementwise.h"
#include "cpu/gemm/linear.h"
#include "cpu/gemm/low_rank.h"
#include "cpu/quant/floats.h"
#include "cpu/quant/quantized.h"
#include "cpu/quant/superblocks.h"

// A type of tensor elements as the tests name it.
struct Type {
    const char* name;
    int32_t dtype;
    int64_t bytes;
};

extern "C" {
int32_t core_kernels_use(const char* variant);
const char* core_kernels_best();
void core_kernels_threads(int64_t count);
void core_rms_norm(void*, const void*, const void*, int64_t, int64_t, int64_t, int64_t, int64_t,
                   float, float, int32_t);
void core_gated(void*, const void*, int64_t, int64_t, int64_t, int32_t, int32_t);
void core_rotary(void*, const float*, const int64_t*, int64_t, int64_t, int64_t, int64_t, int64_t,
                 int64_t, int32_t, int32_t);
void core_elementwise(void*, const void*, const void*, int64_t, int64_t, int64_t, int64_t, int64_t,
                      int64_t, float, int32_t, int32_t);
void core_layer_norm(void*, const void*, const void*, const void*, int64_t, int64_t, int64_t,
                     int64_t, int64_t, float, int32_t);
void core_widen(float*, const void*, int64_t, int64_t, int64_t, int32_t);
void core_argmax(float*, int64_t*, const float*, int64_t, int64_t, int64_t);
void core_sample(int64_t*, const float*, const double*, int64_t, int64_t, int64_t);
void core_pack(void*, const void*, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int32_t);
void core_linear(void*, const void*, const void*, const void*, int64_t, int64_t, int64_t, int64_t,
                 int64_t, int32_t);
void core_quantize(void*, const void*, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                   int64_t, int64_t, int32_t);
void core_quantized_linear(void*, const void*, const void*, const int32_t*, int64_t, int64_t,
                           int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int32_t);
void core_floats_pack_codes(void*, const uint8_t*, const void*, const float*, int64_t, int64_t,
                            int64_t, int64_t, int64_t, int64_t, int64_t, int32_t);
void core_floats_linear(void*, const void*, const void*, int64_t, int64_t, int64_t, int64_t,
                        int64_t, int64_t, int32_t, const float*, int32_t);
int32_t core_superblock_pack(void*, const void*, int64_t, int64_t, int64_t, int64_t, int64_t,
                             int32_t);
void core_superblock_linear(void*, const void*, const void*, int64_t, int64_t, int64_t, int64_t,
                            int64_t, int32_t, int32_t, int32_t);
void core_plan_attention(const void*, int64_t*, int64_t*);
void core_paged_attention(const void*);
void core_select_tokens(const void*, int32_t);
void core_copy_keys(void*, const void*, const int32_t*, const int32_t*, int64_t, int64_t, int64_t,
                    int32_t);
void core_checksum_copy(void* const*, const void* const*, const int64_t*, int64_t, uint64_t*);
}

namespace {

const Type kTypes[] = {
    {"float32", kFloat32, 4}, {"bfloat16", kBFloat16, 2}, {"float16", kFloat16, 2}};
const int64_t kRowCounts[] = {1, 3, 4, 7, 17, 33};

uint32_t state = 1;

uint32_t next_bits() {
    state = state * 1664525 + 1013904223;
    return state >> 8;
}

float next_number() { return static_cast<float>(next_bits() % 4096) / 2048.0f - 1.0f; }

// Numbers of a type, in memory that vectors may read past the end of.
class Tensor {
public:
    Tensor(int64_t count, const Type& type)
        : type(type), count(count), bytes_(count * type.bytes + 64) {}

    static Tensor random(int64_t count, const Type& type) {
        Tensor made(count, type);
        for (int64_t i = 0; i < count; ++i) {
            const float number = next_number();
            uint32_t bits;
            std::memcpy(&bits, &number, sizeof bits);
            const uint16_t upper = bits >> 16;
            const auto half = static_cast<uint16_t>(0x3000 | (next_bits() & 0x83ff));
            if (type.dtype == kFloat32) std::memcpy(made.at(i), &number, 4);
            if (type.dtype == kBFloat16) std::memcpy(made.at(i), &upper, 2);
            if (type.dtype == kFloat16) std::memcpy(made.at(i), &half, 2);
        }
        return made;
    }

    void* at(int64_t i) { return bytes_.data() + i * type.bytes; }
    void* data() { return bytes_.data(); }

    void write(const std::string& name) {
        std::vector<float> wide(count);
        core_widen(wide.data(), data(), 1, count, count, type.dtype);
        std::printf("%s %s %lld\n", name.c_str(), type.name, static_cast<long long>(count));
        std::fwrite(wide.data(), sizeof(float), count, stdout);
    }

    const Type type;
    const int64_t count;

private:
    std::vector<uint8_t> bytes_;
};

bool rows_agree = true;

// Calls product(out, x, rows) for all rows at once and for each alone.
template <typename Multiply>
void products(const std::string& name, const Type& type, int64_t out, int64_t in,
              Multiply multiply) {
    for (int64_t rows : kRowCounts) {
        Tensor x = Tensor::random(rows * in, type), together(rows * out, type), alone(out, type);
        multiply(together.data(), x.data(), rows);
        for (int64_t row = 0; row < rows; ++row) {
            multiply(alone.data(), x.at(row * in), 1);
            if (std::memcmp(alone.data(), together.at(row * out), out * type.bytes) != 0) {
                std::fprintf(stderr, "%s %s: row %d of %d differs\n", name.c_str(), type.name,
                             static_cast<int>(row), static_cast<int>(rows));
                rows_agree = false;
            }
        }
        together.write(name + "_" + std::to_string(out) + "x" + std::to_string(in));
    }
}

const struct {
    int64_t out, in;
} kShapes[] = {{1, 2}, {16, 32}, {70, 72}, {130, 256}};

std::vector<uint8_t> weight_memory(int64_t out, int64_t in) {
    return std::vector<uint8_t>((out + 127) / 64 * 64 * (in + 64) * 8);
}

void linears(const Type& type) {
    for (const auto& shape : kShapes) {
        const int64_t out = shape.out, in = shape.in;
        Tensor weight = Tensor::random(out * in, type), bias = Tensor::random(out, type);
        std::vector<uint8_t> packed = weight_memory(out, in);
        core_pack(packed.data(), weight.data(), 0, out, in, in, 1, out, type.dtype);
        products("linear", type, out, in, [&](void* to, const void* x, int64_t rows) {
            core_linear(to, x, packed.data(), bias.data(), rows, out, in, in, out, type.dtype);
        });
    }
}

void integers(const Type& type) {
    for (const auto& shape : kShapes)
        for (int64_t code : {int64_t{kInt4}, int64_t{kInt8}})
            for (int64_t x_bits : {16, 8}) {
                const int64_t out = shape.out, in = (shape.in + 7) / 8 * 8;
                if (code == kInt4 && x_bits == 8) continue;
                Tensor weight = Tensor::random(out * in, type);
                std::vector<uint8_t> packed = weight_memory(out, in);
                core_quantize(packed.data(), weight.data(), 0, out, in, in, 1, out, code, 32,
                              type.dtype);
                const std::string name =
                    "int" + std::to_string(code) + "_x" + std::to_string(x_bits);
                products(name, type, out, in, [&](void* to, const void* x, int64_t rows) {
                    core_quantized_linear(to, x, packed.data(), nullptr, rows, out, in, in, code,
                                          32, kBFloat16Scales, kNoZeros, x_bits, type.dtype);
                });
            }
}

void floats(const Type& type) {
    for (const auto& shape : kShapes)
        for (int32_t kind : {int32_t{kE4M3}, int32_t{kE5M2}, int32_t{kTabled}}) {
            const int64_t out = shape.out, in = (shape.in + 7) / 8 * 8, groups = (in + 31) / 32;
            std::vector<uint8_t> codes(out * in), packed = weight_memory(out, in);
            for (uint8_t& code : codes)
                code = kind == kTabled ? next_bits() % 16 : 0x20 | (next_bits() & 0x9f);
            std::vector<float> scales(out * groups), table(16);
            for (float& scale : scales) scale = 0.5f + next_number() / 4;
            for (float& entry : table) entry = static_cast<float>(next_bits() % 64) / 16 - 2;
            const float* used = kind == kTabled ? table.data() : nullptr;
            core_floats_pack_codes(packed.data(), codes.data(), scales.data(), nullptr, 0, out, in,
                                   in, out, 32, kWhole, kind);
            const std::string name = "float8_" + std::to_string(kind);
            products(name, type, out, in, [&](void* to, const void* x, int64_t rows) {
                core_floats_linear(to, x, packed.data(), rows, out, in, in, 32, kWhole, kind, used,
                                   type.dtype);
            });
        }
}

void superblocks(const Type& type) {
    const struct {
        BlockKind kind;
        int64_t numbers, bytes;
    } kinds[] = {{kQ4_0, 32, 18},  {kQ4_1, 32, 20},   {kQ5_0, 32, 22},   {kQ5_1, 32, 24},
                 {kQ8_0, 32, 34},  {kQ2_K, 256, 84},  {kQ3_K, 256, 110}, {kQ4_K, 256, 144},
                 {kQ5_K, 256, 176}, {kQ6_K, 256, 210}};
    for (const auto& each : kinds)
        for (int64_t out : {16, 70, 128})
            for (int32_t x_bits : {16, 8}) {
                const int64_t in = 512, row = in / each.numbers * each.bytes;
                std::vector<uint8_t> blocks(out * row), packed = weight_memory(out, in);
                // Bytes in this range are moderate numbers wherever they are a float16.
                for (uint8_t& byte : blocks) byte = 0x28 + next_bits() % 0x10;
                core_superblock_pack(packed.data(), blocks.data(), 0, out, in / each.numbers, row,
                                     out, each.kind);
                const std::string name =
                    "block" + std::to_string(each.kind) + "_x" + std::to_string(x_bits);
                products(name, type, out, in, [&](void* to, const void* x, int64_t rows) {
                    core_superblock_linear(to, x, packed.data(), rows, out, in, in, out, each.kind,
                                           x_bits, type.dtype);
                });
            }
}

void row_ops(const Type& type) {
    for (int64_t width : {1, 16, 70, 130}) {
        const int64_t rows = 5;
        Tensor x = Tensor::random(rows * 2 * width, type), weight = Tensor::random(width, type),
               bias = Tensor::random(width, type), out(rows * width, type);
        const std::string at = "_" + std::to_string(width);
        core_rms_norm(out.data(), x.data(), weight.data(), 1, rows, width, 0, width, 1e-6f, 1.0f,
                      type.dtype);
        out.write("rms_norm" + at);
        core_layer_norm(out.data(), x.data(), weight.data(), bias.data(), 1, rows, width, 0, width,
                        1e-6f, type.dtype);
        out.write("layer_norm" + at);
        for (int32_t activation : {int32_t{kSilu}, int32_t{kGeluTanh}}) {
            core_gated(out.data(), x.data(), rows, width, 2 * width, activation, type.dtype);
            out.write("gated" + std::to_string(activation) + at);
        }
        for (int32_t kind = kAdd; kind <= kSigmoidOf; ++kind) {
            const bool both = kind <= kMultiply;
            core_elementwise(out.data(), x.data(), both ? x.at(rows * width) : nullptr, rows, width,
                             width, width, width, 1, 0.0f, kind, type.dtype);
            out.write("elementwise" + std::to_string(kind) + at);
        }
    }
    const int64_t tokens = 3, heads = 2, size = 64;
    std::vector<float> cos_sin(8 * size);
    for (float& each : cos_sin) each = next_number();
    const int64_t positions[tokens] = {0, 5, 7};
    for (int32_t interleaved : {0, 1}) {
        Tensor x = Tensor::random(tokens * heads * size, type);
        core_rotary(x.data(), cos_sin.data(), positions, tokens, heads, size, heads * size, size,
                    size, interleaved, type.dtype);
        x.write("rotary" + std::to_string(interleaved));
    }
}

void sampling() {
    const int64_t rows = 4, width = 1000;
    Tensor logits = Tensor::random(rows * width, kTypes[0]);
    std::vector<int64_t> tokens(rows);
    std::vector<float> values(rows);
    const std::vector<double> uniform = {0.1, 0.4, 0.7, 0.95};
    Tensor found(2 * rows, kTypes[0]);
    const auto* numbers = static_cast<const float*>(logits.data());
    core_argmax(values.data(), tokens.data(), numbers, rows, width, width);
    for (int64_t i = 0; i < rows; ++i) static_cast<float*>(found.data())[i] = tokens[i];
    core_sample(tokens.data(), numbers, uniform.data(), rows, width, width);
    for (int64_t i = 0; i < rows; ++i) static_cast<float*>(found.data())[rows + i] = tokens[i];
    found.write("sampling");
}

// A prompt of 40 tokens and one more token of a sequence of 21, in blocks of 16.
void attention(const Type& type, int64_t head_size, int64_t window, float softcap) {
    const int64_t heads = 4, kv_heads = 2, block = 16, tokens = 41;
    Tensor query = Tensor::random(tokens * heads * head_size, type),
           key = Tensor::random(tokens * kv_heads * head_size, type),
           value = Tensor::random(tokens * kv_heads * head_size, type),
           cache = Tensor::random(8 * 2 * block * kv_heads * head_size, type),
           out(tokens * heads * head_size, type);
    const std::vector<int64_t> starts = {0, 40, 41}, lengths = {40, 21};
    const std::vector<int32_t> tables = {1, 2, 3, 4, 5, 0};
    std::vector<int64_t> slots, order(2), shared(2);
    for (int64_t i = 0; i < 40; ++i) slots.push_back(block + i);
    slots.push_back(5 * block + 4);
    PagedAttention a = {};
    a.out = out.data(), a.query = query.data(), a.key = key.data(), a.value = value.data();
    a.cache = cache.data(), a.slots = slots.data(), a.starts = starts.data();
    a.lengths = lengths.data(), a.tables = tables.data();
    a.num_slots = tokens, a.sequences = 2, a.table_stride = 3;
    a.heads = heads, a.kv_heads = kv_heads, a.head_size = head_size, a.block_size = block;
    a.query_token = heads * head_size, a.query_head = head_size;
    a.key_token = a.value_token = kv_heads * head_size, a.key_head = a.value_head = head_size;
    a.window = window, a.scale = 1 / std::sqrt(static_cast<float>(head_size));
    a.softcap = softcap, a.causal = 1, a.dtype = type.dtype;
    a.order = order.data(), a.shared = shared.data();
    core_plan_attention(&a, order.data(), shared.data());
    core_paged_attention(&a);
    out.write("attention_" + std::to_string(head_size) + "_" + std::to_string(window));
}

// Three queries that see 98 to 100 keys, in blocks of 16, and copies of 20 keys.
void selection(const Type& type, int64_t heads, int64_t size) {
    const int64_t queries = 3, block = 16, count = 20;
    Tensor query = Tensor::random(queries * heads * size, type),
           keys = Tensor::random(8 * block * size, type), copied(32 * size, type);
    std::vector<float> weights;
    for (int64_t i = 0; i < queries * heads; ++i) weights.push_back(next_number());
    const std::vector<int32_t> table = {3, 0, 7, 1, 6, 2, 4};
    const std::vector<int64_t> seen = {98, 99, 100};
    std::vector<int32_t> found(queries * count);
    const TokenSelection a = {found.data(), query.data(), weights.data(), keys.data(), table.data(),
                              seen.data(),  queries,      heads,          size,        block,
                              block * size, size,         count};
    core_select_tokens(&a, type.dtype);
    Tensor positions(queries * count, kTypes[0]);
    for (int64_t i = 0; i < queries * count; ++i)
        static_cast<float*>(positions.data())[i] = static_cast<float>(found[i]);
    const std::string at = "_" + std::to_string(heads) + "_" + std::to_string(size);
    positions.write(std::string("selection_") + type.name + at);
    if (size % 16) return;
    core_copy_keys(copied.data(), keys.data(), table.data(), found.data(), count, block, size,
                   type.dtype);
    copied.write("copied_keys" + at);
}

void copies() {
    std::vector<uint8_t> from(1000), to(1000);
    for (uint8_t& byte : from) byte = next_bits();
    const int64_t size = 1000;
    void* target = to.data();
    const void* source = from.data();
    uint64_t sum = 0;
    core_checksum_copy(&target, &source, &size, 1, &sum);
    Tensor found(5, kTypes[0]);
    for (int i = 0; i < 4; ++i)
        static_cast<float*>(found.data())[i] = static_cast<float>(sum >> 16 * i & 0xffff);
    static_cast<float*>(found.data())[4] = from == to;
    found.write("checksum");
}

}  // namespace

int main(int count, char** arguments) {
    if (count < 2) return std::puts(core_kernels_best()) < 0;
    if (!core_kernels_use(arguments[1])) return 2;
    core_kernels_threads(2);
    for (const Type& type : kTypes) {
        linears(type);
        integers(type);
        floats(type);
        superblocks(type);
        row_ops(type);
        for (int64_t head_size : {16, 24, 64}) {
            attention(type, head_size, 0, 0.0f);
            attention(type, head_size, 9, 5.0f);
        }
        selection(type, 4, 64);
        selection(type, 5, 30);
    }
    sampling();
    copies();
    return rows_agree ? 0 : 1;
}
