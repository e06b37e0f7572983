// Also compiled alone: build.py asks it which variant to build.
#include "cpu/processor.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>

#include "cpu/gemm/tile_check.h"
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Support {
    const char* variant;
    bool runs;
};

#if defined(__x86_64__)
// True if the processor has AVX-VNNI, which older compilers do not detect.
bool has_avx_vnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 4));
}
#endif

#if defined(__aarch64__)
// Bits of the Linux kernel's hardware capabilities; older headers do not name them.
constexpr unsigned long kDotProduct = 1ul << 20, kMatrixProduct = 1ul << 13,
                        kBFloat16Product = 1ul << 14;
#if defined(__linux__)
bool has_hwcap(unsigned long of, unsigned long bit) { return getauxval(of) & bit; }
#else
constexpr unsigned long AT_HWCAP = 0, AT_HWCAP2 = 0;
bool has_hwcap(unsigned long, unsigned long) { return false; }
#endif
#endif

// The fastest first. `amx_emulated` is for tests only.
const Support* all_variants() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                             __builtin_cpu_supports("f16c");
    static const bool avx512 =
        avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    static const bool integers = avx512 && __builtin_cpu_supports("avx512vnni");
    static const bool pairs = integers && __builtin_cpu_supports("avx512bf16");
    static const Support all[] = {{"amx", pairs && tile_check::is_supported()},
                                  {"avx512_bf16", pairs},
                                  {"avx512_vnni", integers},
                                  {"avx512", avx512},
                                  {"avx2_vnni", avx2 && has_avx_vnni()},
                                  {"avx2", avx2},
                                  {"generic", true},
                                  {"amx_emulated", pairs},
                                  {}};
#elif defined(__aarch64__)
    static const bool dotprod = has_hwcap(AT_HWCAP, kDotProduct);
    static const bool i8mm = dotprod && has_hwcap(AT_HWCAP2, kMatrixProduct);
    static const bool bf16 = i8mm && has_hwcap(AT_HWCAP2, kBFloat16Product);
    static const Support all[] = {{"neon_bf16", bf16},
                                  {"neon_i8mm", i8mm},
                                  {"neon_dotprod", dotprod},
                                  {"generic", true},
                                  {}};
#else
    static const Support all[] = {{"generic", true}, {}};
#endif
    return all;
}

}  // namespace

namespace processor {

bool runs(const char* variant) {
    for (const Support* each = all_variants(); each->variant; ++each)
        if (std::strcmp(each->variant, variant) == 0) return each->runs;
    return false;
}

bool multiplies_subnormals() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

}  // namespace processor

// Returns 1 if this processor runs the variant, whether or not the library has it.
EXPORT int32_t core_kernels_runs(const char* variant) { return processor::runs(variant); }

// The fastest variant of this processor, whether or not the library has it.
EXPORT const char* core_kernels_best() {
    const Support* each = all_variants();
    while (!each->runs) ++each;
    return each->variant;
}
