// Where floats of eight bits and their scales lie in a weight, and how they become numbers that are multiplied.
//
// A panel of 64 output rows, the last one as many tiles of sixteen as are left, holds for each group of inputs the scales of
// its rows, then word after word of all rows: four inputs each, of which the second and third have changed places, so that
// both halves of a word are pairs that lie as those of bfloat16 do.
#pragma once

#include "floats.h"
#include "panel_work.h"

namespace {

constexpr int64_t kInWord = 4;
constexpr int64_t kWordsTogether = 2;  // rows are filled up with zeros to a multiple
constexpr int kPlaces[kInWord] = {0, 2, 1, 3};

struct FloatLayout {
    int64_t rows, width, group;

    int64_t filled() const { return rounded_up(width, kInWord * kWordsTogether); }
    int64_t groups() const { return (width + group - 1) / group; }
    int64_t inputs(int64_t index) const { return std::min(group, filled() - index * group); }
    int64_t panels() const { return (rows + kPanel - 1) / kPanel; }
    int64_t columns(int64_t panel) const { return std::min<int64_t>(kPanel, rounded_up(rows, kLanes) - panel * kPanel); }
    int64_t row_bytes() const { return groups() * static_cast<int64_t>(sizeof(float)) + filled(); }
    int64_t bytes() const { return rounded_up(rows, kLanes) * row_bytes(); }
    int64_t panel_at(int64_t panel) const { return panel * kPanel * row_bytes(); }
    // Of a panel with so many columns.
    int64_t group_at(int64_t index, int64_t columns) const {
        return columns * index * (static_cast<int64_t>(sizeof(float)) + group);
    }
    int64_t codes_at(int64_t columns) const { return columns * static_cast<int64_t>(sizeof(float)); }
};

template <int kKind>
struct Float8 {
    static constexpr int kFraction = kKind == kE4M3 ? 3 : 2;            // bits
    static constexpr uint32_t kBias = kKind == kE4M3 ? 120 : 112;       // that float32's is larger by
    static constexpr uint32_t kSpecial = kKind == kE4M3 ? 0x7f : 0x7c;  // from which on there are no numbers
    static constexpr float kLeast = kKind == kE4M3 ? 0x1p-9f : 0x1p-16f;

    // Float32 of sixteen codes, one in each lane.
    static Floats widen(Words codes) {
        const Words own = codes & 0x7f, sign = (codes & 0x80) << 24, bits = own << (23 - kFraction);
        const Floats small = __builtin_convertvector((Ints)own, Floats) * kLeast;
        Words found = own < (1u << kFraction) ? (Words)small : bits + (kBias << 23);
        found = own >= kSpecial ? bits | 0x7f800000 : found;
        return (Floats)(found | sign);
    }
};

#if defined(__AVX512BW__)
// Bits of bfloat16 by the lower seven bits of a code.
template <int kKind>
struct Table {
    alignas(64) uint16_t bits[128];

    constexpr Table() : bits() {
        using Own = Float8<kKind>;
        for (uint32_t code = 0; code < 128; ++code) {
            uint32_t exponent = (code >> Own::kFraction) + Own::kBias, fraction = code % (1u << Own::kFraction);
            if (code < 1u << Own::kFraction && code > 0)  // a subnormal number is a normal one of more exponent bits
                for (exponent = Own::kBias + 1; fraction < 1u << Own::kFraction; fraction *= 2) --exponent;
            fraction %= 1u << Own::kFraction;
            bits[code] = static_cast<uint16_t>(exponent << 7 | fraction << (7 - Own::kFraction));
            if (code == 0) bits[code] = 0;
            if (code >= Own::kSpecial) bits[code] = static_cast<uint16_t>(0x7f80 | fraction << (7 - Own::kFraction));
        }
    }
};

template <int kKind>
constexpr Table<kKind> kTable;
#endif

// Pairs of bfloat16 of pairs of codes, one in each half of a lane.
template <int kKind>
inline Words pairs_of(Words codes) {
#if defined(__AVX512BW__)
    const uint16_t* table = kTable<kKind>.bits;
    const __m512i own = (__m512i)codes;
    const __m512i low = _mm512_permutex2var_epi16(_mm512_load_si512(table), own, _mm512_load_si512(table + 32));
    const __m512i high = _mm512_permutex2var_epi16(_mm512_load_si512(table + 64), own, _mm512_load_si512(table + 96));
    const __m512i found = _mm512_mask_mov_epi16(low, _mm512_test_epi16_mask(own, _mm512_set1_epi16(0x40)), high);
    return (Words)found | (codes & 0x00800080) << 8;
#else
    const Words first = (Words)Float8<kKind>::widen(codes & 0xff), second = (Words)Float8<kKind>::widen(codes >> 16);
    return first >> 16 | (second & 0xffff0000);
#endif
}

// Codes of a group, `inputs` of each column, as units of linear.cpp; of what comes `ahead`, as many bytes are fetched.
template <int kKind>
inline void open(BFloat16* to, const uint8_t* from, int64_t columns, int64_t inputs, const uint8_t* ahead) {
    for (int64_t k = 0; k < inputs; k += kInWord, to += columns * kInWord)
        for (int64_t column = 0; column < columns; column += kLanes, from += sizeof(Words), ahead += kLineBytes) {
            __builtin_prefetch(ahead, 0, 2);
            Words words;
            std::memcpy(&words, from, sizeof words);
            const Words first = pairs_of<kKind>(words & 0x00ff00ff), second = pairs_of<kKind>(words >> 8 & 0x00ff00ff);
            std::memcpy(to + column * 2, &first, sizeof first);
            std::memcpy(to + (columns + column) * 2, &second, sizeof second);
        }
}

template <int kKind>
inline void open(float* to, const uint8_t* from, int64_t columns, int64_t inputs, const uint8_t* ahead) {
    for (int64_t k = 0; k < inputs; k += kInWord, to += columns * kInWord)
        for (int64_t column = 0; column < columns; column += kLanes, from += sizeof(Words), ahead += kLineBytes) {
            __builtin_prefetch(ahead, 0, 2);
            Words words;
            std::memcpy(&words, from, sizeof words);
            for (int64_t i = 0; i < kInWord; ++i)
                store(to + i * columns + column, Float8<kKind>::widen(words >> (8 * kPlaces[i]) & 0xff));
        }
}

}  // namespace
