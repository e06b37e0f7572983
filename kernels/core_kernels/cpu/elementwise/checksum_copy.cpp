// SSE2, which every x86-64 processor has, is enough: memory bandwidth is the limit. So there are no
// variants.
#include "cpu/elementwise/checksum_copy.h"

#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

constexpr int64_t kWord = 8;

#if defined(__SSE2__)

constexpr int64_t kLine = 64;
constexpr int kParts = 4;  // per line

enum class Copy { kNone, kPlain, kNonTemporal };

// kNonTemporal writes past the caches: the destination is not read first, and cached data is not
// evicted.
template <Copy kind>
uint64_t lines(char* to, const char* from, int64_t bytes) {
    __m128i sums[kParts] = {};
    for (int64_t at = 0; at < bytes; at += kLine)
        for (int part = 0; part < kParts; ++part) {
            const int64_t offset = at + part * static_cast<int64_t>(sizeof(__m128i));
            const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + offset));
            if (kind == Copy::kNonTemporal)
                _mm_stream_si128(reinterpret_cast<__m128i*>(to + offset), words);
            if (kind == Copy::kPlain)
                _mm_storeu_si128(reinterpret_cast<__m128i*>(to + offset), words);
            sums[part] = _mm_add_epi64(sums[part], words);
        }
    uint64_t halves[2];
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(halves),
        _mm_add_epi64(_mm_add_epi64(sums[0], sums[1]), _mm_add_epi64(sums[2], sums[3])));
    return halves[0] + halves[1];
}

// Copies the leading whole lines and returns their sum.
uint64_t leading(char* to, const char* from, int64_t bytes) {
    if (!to) return lines<Copy::kNone>(to, from, bytes);
    if (reinterpret_cast<uintptr_t>(to) % sizeof(__m128i))
        return lines<Copy::kPlain>(to, from, bytes);
    return lines<Copy::kNonTemporal>(to, from, bytes);
}

void finish() { _mm_sfence(); }

#else

constexpr int64_t kLine = kWord;

uint64_t leading(char* to, const char* from, int64_t bytes) {
    uint64_t sum = 0;
    for (int64_t at = 0; at < bytes; at += kWord) {
        uint64_t word;
        std::memcpy(&word, from + at, kWord);
        if (to) std::memcpy(to + at, &word, kWord);
        sum += word;
    }
    return sum;
}

void finish() {}

#endif

uint64_t words(char* to, const char* from, int64_t bytes) {
    const int64_t whole = bytes / kLine * kLine;
    uint64_t sum = leading(to, from, whole);
    for (int64_t at = whole; at < bytes; at += kWord) {
        uint64_t word;
        std::memcpy(&word, from + at, kWord);
        if (to) std::memcpy(to + at, &word, kWord);
        sum += word;
    }
    return sum;
}

uint64_t each_byte(char* to, const char* from, int64_t bytes) {
    uint64_t sum = 0;
    for (int64_t at = 0; at < bytes; ++at) {
        const unsigned char byte = static_cast<unsigned char>(from[at]);
        if (to) to[at] = static_cast<char>(byte);
        sum += byte;
    }
    return sum;
}

}  // namespace

namespace checksum_copy {

void copy(void* const* to, const void* const* from, const int64_t* sizes, int64_t count,
          uint64_t* sums) {
    for (int64_t piece = 0; piece < count; ++piece) {
        char* target = to ? static_cast<char*>(to[piece]) : nullptr;
        const char* source = static_cast<const char*>(from[piece]);
        sums[piece] = sizes[piece] % kWord ? each_byte(target, source, sizes[piece])
                                           : words(target, source, sizes[piece]);
    }
    finish();
}

}  // namespace checksum_copy
