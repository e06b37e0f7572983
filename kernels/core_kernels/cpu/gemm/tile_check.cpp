#include "cpu/gemm/tile_check.h"

#include <cstring>
#include <vector>
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

// Whole chunks plus a rest, whole registers plus a rest, two panels of which the second is partial.
constexpr int64_t kOut = 100, kIn = 72;

// Rows of bfloat16 between 2^-4 and 2^4. The second half mirrors the first with the given sign.
// With a negative sign products cancel, so only rounding errors remain and the summation order
// becomes visible.
std::vector<uint16_t> numbers(int64_t rows, uint16_t sign) {
    std::vector<uint16_t> made(rows * kIn);
    uint32_t state = 1 + sign;
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < kIn / 2; ++i) {
            state = state * 1664525 + 1013904223;
            const auto number =
                static_cast<uint16_t>((state >> 31) << 15 | (0x3d80 + (state >> 16) % 0x400));
            made[row * kIn + i] = number;
            made[(row + 1) * kIn - 1 - i] = number ^ sign;
        }
    return made;
}

// True if multiply(out, x, rows) gives each row the bits of alone(out, x, 1).
template <typename Many, typename Alone>
bool same(Many multiply, Alone alone) {
    for (int64_t rows : {7, 21}) {
        const std::vector<uint16_t> x = numbers(rows, 0x8000);
        std::vector<uint16_t> together(rows * kOut), single(rows * kOut);
        multiply(together.data(), x.data(), rows);
        for (int64_t row = 0; row < rows; ++row)
            alone(single.data() + row * kOut, x.data() + row * kIn, int64_t{1});
        if (std::memcmp(together.data(), single.data(), together.size() * sizeof(uint16_t)) != 0)
            return false;
    }
    return true;
}

}  // namespace

namespace tile_check {

bool is_supported() {
#if defined(__x86_64__) && defined(__linux__)
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 27))
        return false;  // the OS saves extended state
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    constexpr unsigned needed = 1u << 22 | 1u << 24 | 1u << 25;  // bfloat16, tiles, int8
    if ((d & needed) != needed) return false;
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    constexpr unsigned state = 1u << 17 | 1u << 18;  // tile configuration, tile data
    if ((low & state) != state) return false;
    constexpr long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}

bool results_match(const LinearOps& many, const LinearOps& alone) {
    const std::vector<uint16_t> weight = numbers(kOut, 0);
    std::vector<uint16_t> packed((kOut + 15) / 16 * 16 * kIn);
    many.pack(packed.data(), weight.data(), 0, {kOut, kIn, kIn, 1}, kOut, kBFloat16);
    const auto with = [&](const LinearOps& ops) {
        return [&](void* out, const void* x, int64_t rows) {
            ops.product({out, x, packed.data(), nullptr, rows, kOut, kIn, kIn, kOut}, kBFloat16);
        };
    };
    return same(with(many), with(alone));
}

bool results_match(const QuantizedOps& many, const QuantizedOps& alone) {
    for (const IntegerFormat format : {IntegerFormat{kInt8, 32, kBFloat16Scales, kNoZeros},
                                       IntegerFormat{kInt4, 64, kBFloat16Scales, kNoZeros}}) {
        const std::vector<uint16_t> weight = numbers(kOut, 0);
        const int64_t groups = (kIn + format.group - 1) / format.group;
        std::vector<uint8_t> rounded((kOut + 15) / 16 * 16 * (groups * 2 + kIn * format.code / 8));
        many.pack(rounded.data(), weight.data(), 0, {kOut, kIn, kIn, 1}, kOut, format, kBFloat16);
        const auto with = [&](const QuantizedOps& ops) {
            return [&](void* out, const void* x, int64_t rows) {
                ops.product({out, x, rounded.data(), nullptr, rows, kOut, kIn, kIn, kOut}, nullptr,
                            format, kBFloat16);
            };
        };
        if (!same(with(many), with(alone))) return false;
    }
    return true;
}

}  // namespace tile_check
