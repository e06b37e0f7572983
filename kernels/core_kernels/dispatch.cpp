// The C ABI of the library, and the choice of an instruction set when it is loaded.
#include <cstring>

#include "row_ops.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Variant {
    const char* name;
    const RowOps* ops;
    bool usable;
};

const Variant* variants() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    static const bool avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    static const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    static const Variant all[] = {{"avx512", &row_ops_avx512, avx512},
                                  {"avx2", &row_ops_avx2, avx2},
                                  {"generic", &row_ops_generic, true},
                                  {nullptr, nullptr, false}};
#else
    static const Variant all[] = {{"generic", &row_ops_generic, true}, {nullptr, nullptr, false}};
#endif
    return all;
}

const Variant* best() {
    const Variant* variant = variants();
    while (!variant->usable) ++variant;
    return variant;
}

const Variant* chosen = best();

}  // namespace

// Changes with any signature below; the loader refuses another number.
EXPORT int32_t core_kernels_abi() { return 1; }

EXPORT const char* core_kernels_isa() { return chosen->name; }

// Switches to another instruction set (tests compare them all). Returns 0 if this machine lacks it.
EXPORT int32_t core_kernels_use(const char* name) {
    for (const Variant* variant = variants(); variant->name; ++variant)
        if (variant->usable && std::strcmp(variant->name, name) == 0) {
            chosen = variant;
            return 1;
        }
    return 0;
}

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
