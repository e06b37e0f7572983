// GGUF block formats, decoded sixteen columns at a time. Each kind has constants and decoders.
//
// A panel interleaves one block of all its columns: first the halves (float16 scales), column after
// column, then word after word of the rest in file order. So a block takes the file's bytes and no
// more. Four consecutive bytes of a row, which have the same input order in every kind, form a
// lane.
//
// A number is scale * (code - kZero), or scale * code - min. Codes are unsigned quads: four inputs
// a word. Inputs are counted in units of 32; kGroup of them share a scale.
//
// In blocks of 256 inputs a scale is a factor of the block times an integer of up to eight bits;
// so is a minimum. `scales` and `minima` return four of these integers a word. kShared units share
// their words of codes; `quads` decodes them together.
#pragma once

#include "cpu/quant/codes.h"
#include "cpu/quant/superblocks.h"

namespace {

constexpr int64_t kUnit = 32;  // inputs per scale of x
constexpr int kQuads = 8;      // words of codes per unit

// A tile's part of a block.
struct BlockView {
    const uint8_t* halves;
    const uint8_t* words;
    int64_t columns;

    Floats half(int at) const {
        return load(reinterpret_cast<const Float16*>(halves) + at * columns);
    }
    Words word(int64_t at) const {
        return load_words(words + at * columns * static_cast<int64_t>(sizeof(uint32_t)));
    }
};

inline Floats number(Words integers) { return convert<Floats>((Ints)integers); }

// Moves bits 0 to 3 of each lane to bit 4 of its four bytes.
inline Words fifth_bits(Words bits) { return ((bits & 0xf) * 0x02040810) & 0x10101010; }

// One of the four signed bytes of each lane.
inline Floats byte_of(Words words, int at) {
    return convert<Floats>((Ints)(words << (24 - 8 * at)) >> 24);
}

struct Q4_0 {
    static constexpr int64_t kInputs = 32, kBytes = 18, kHalves[] = {0}, kWordsAt = 2, kGroup = 32,
                             kZero = 8, kMaxCode = 15, kShared = 1;
    static constexpr bool kHasMin = false;
    static Words quad(const BlockView& p, int64_t, int i) {
        return (p.word(i % 4) >> (i / 4 * 4)) & 0x0f0f0f0f;
    }
    static Floats scale(const BlockView& p) { return p.half(0); }
};

struct Q4_1 : Q4_0 {
    static constexpr int64_t kBytes = 20, kHalves[] = {0, 2}, kWordsAt = 4, kZero = 0;
    static constexpr bool kHasMin = true;
    static Floats minimum(const BlockView& p) { return -p.half(1); }
};

struct Q5_0 : Q4_0 {
    static constexpr int64_t kBytes = 22, kZero = 16, kMaxCode = 31;
    static Words quad(const BlockView& p, int64_t, int i) {
        return ((p.word(1 + i % 4) >> (i / 4 * 4)) & 0x0f0f0f0f) | fifth_bits(p.word(0) >> (4 * i));
    }
};

struct Q5_1 : Q5_0 {
    static constexpr int64_t kBytes = 24, kHalves[] = {0, 2}, kWordsAt = 4, kZero = 0;
    static constexpr bool kHasMin = true;
    static Floats minimum(const BlockView& p) { return -p.half(1); }
};

struct Q8_0 : Q4_0 {
    static constexpr int64_t kBytes = 34, kZero = 128, kMaxCode = 255;
    static Words quad(const BlockView& p, int64_t, int i) { return p.word(i) ^ 0x80808080; }
};

struct Q2_K {
    static constexpr int64_t kInputs = 256, kBytes = 84, kHalves[] = {80, 82}, kWordsAt = 0,
                             kGroup = 16, kZero = 0, kMaxCode = 3, kShared = 4;
    static constexpr bool kHasMin = true;
    static Words quad(const BlockView& p, int64_t unit, int i) {
        return (p.word(4 + unit / 4 * 8 + i) >> static_cast<int>(unit % 4 * 2)) & 0x03030303;
    }
    static void quads(const BlockView& p, int64_t units, int i, Words (&own)[kShared]) {
        const Words words = p.word(4 + units * 8 + i);
        for (int at = 0; at < kShared; ++at) own[at] = (words >> (2 * at)) & 0x03030303;
    }
    static Words scales(const BlockView& p, int64_t at) { return p.word(at) & 0x0f0f0f0f; }
    static Words minima(const BlockView& p, int64_t at) { return (p.word(at) >> 4) & 0x0f0f0f0f; }
};

struct Q3_K {
    static constexpr int64_t kInputs = 256, kBytes = 110, kHalves[] = {108}, kWordsAt = 0,
                             kGroup = 16, kZero = 4, kMaxCode = 7, kShared = 4;
    static constexpr bool kHasMin = false;
    static Words quad(const BlockView& p, int64_t unit, int i) {
        const Words low =
            (p.word(8 + unit / 4 * 8 + i) >> static_cast<int>(unit % 4 * 2)) & 0x03030303;
        return low | ((p.word(i) >> static_cast<int>(unit)) & 0x01010101) << 2;
    }
    static void quads(const BlockView& p, int64_t units, int i, Words (&own)[kShared]) {
        const Words low = p.word(8 + units * 8 + i),
                    high = p.word(i) >> static_cast<int>(4 * units);
        for (int at = 0; at < kShared; ++at)
            own[at] = ((low >> (2 * at)) & 0x03030303) | ((high >> at) & 0x01010101) << 2;
    }
    static Words scales(const BlockView& p, int64_t at) {
        const Words low = (p.word(24 + at % 2) >> static_cast<int>(at / 2 * 4)) & 0x0f0f0f0f,
                    high = (p.word(26) >> static_cast<int>(2 * at)) & 0x03030303;
        const Words less = (low | high << 4) ^ 0x20202020,  // 32 less, in six bits
                    sign = less & 0x20202020;
        return less | sign << 1 | sign << 2;
    }
};

struct Q4_K {
    static constexpr int64_t kInputs = 256, kBytes = 144, kHalves[] = {0, 2}, kWordsAt = 4,
                             kGroup = 32, kZero = 0, kMaxCode = 15, kShared = 2;
    static constexpr bool kHasMin = true;
    static Words quad(const BlockView& p, int64_t unit, int i) {
        return (p.word(3 + unit / 2 * 8 + i) >> static_cast<int>(unit % 2 * 4)) & 0x0f0f0f0f;
    }
    static void quads(const BlockView& p, int64_t units, int i, Words (&own)[kShared]) {
        const Words words = p.word(3 + units * 8 + i);
        own[0] = words & 0x0f0f0f0f;
        own[1] = (words >> 4) & 0x0f0f0f0f;
    }
    static Words scales(const BlockView& p, int64_t at) { return six_bits(p, 0, at); }
    static Words minima(const BlockView& p, int64_t at) { return six_bits(p, 1, at); }

private:
    // Six-bit values: units 0 to 3 use the low bits of a byte; its top two bits belong to a later
    // unit; word 2 has the rest.
    static Words six_bits(const BlockView& p, int word, int64_t at) {
        const Words own = p.word(word);
        if (at == 0) return own & 0x3f3f3f3f;
        return ((p.word(2) >> (4 * word)) & 0x0f0f0f0f) | ((own >> 2) & 0x30303030);
    }
};

struct Q5_K : Q4_K {
    static constexpr int64_t kBytes = 176, kMaxCode = 31;
    static Words quad(const BlockView& p, int64_t unit, int i) {
        const Words low =
            (p.word(11 + unit / 2 * 8 + i) >> static_cast<int>(unit % 2 * 4)) & 0x0f0f0f0f;
        return low | ((p.word(3 + i) >> static_cast<int>(unit)) & 0x01010101) << 4;
    }
    static void quads(const BlockView& p, int64_t units, int i, Words (&own)[kShared]) {
        const Words low = p.word(11 + units * 8 + i),
                    high = p.word(3 + i) >> static_cast<int>(2 * units);
        own[0] = (low & 0x0f0f0f0f) | (high & 0x01010101) << 4;
        own[1] = ((low >> 4) & 0x0f0f0f0f) | ((high >> 1) & 0x01010101) << 4;
    }
};

struct Q6_K {
    static constexpr int64_t kInputs = 256, kBytes = 210, kHalves[] = {208}, kWordsAt = 0,
                             kGroup = 16, kZero = 32, kMaxCode = 63, kShared = 4;
    static constexpr bool kHasMin = false;
    static Words quad(const BlockView& p, int64_t unit, int i) {
        const int64_t half = unit / 4, quarter = unit % 4;
        const Words low =
            (p.word(half * 16 + quarter % 2 * 8 + i) >> static_cast<int>(quarter / 2 * 4)) &
            0x0f0f0f0f;
        return low | ((p.word(32 + half * 8 + i) >> static_cast<int>(2 * quarter)) & 0x03030303)
                         << 4;
    }
    static void quads(const BlockView& p, int64_t units, int i, Words (&own)[kShared]) {
        const Words first = p.word(units * 16 + i), second = p.word(units * 16 + 8 + i),
                    high = p.word(32 + units * 8 + i);
        own[0] = (first & 0x0f0f0f0f) | ((high << 4) & 0x30303030);
        own[1] = (second & 0x0f0f0f0f) | ((high << 2) & 0x30303030);
        own[2] = ((first >> 4) & 0x0f0f0f0f) | (high & 0x30303030);
        own[3] = ((second >> 4) & 0x0f0f0f0f) | ((high >> 2) & 0x30303030);
    }
    static Words scales(const BlockView& p, int64_t at) { return p.word(48 + at); }
};

template <typename Kind>
constexpr int64_t num_halves() {
    return sizeof(Kind::kHalves) / sizeof(Kind::kHalves[0]);
}

// Whether scales are a factor of the block times integers.
template <typename Kind>
constexpr bool kHasFactors = Kind::kInputs > kUnit;
// Whether the factor is applied to a block's sum instead of to each scale. Where products of bytes
// are added to 32 bits by one instruction, that made 64 rows 1.1 to 1.3 times as long.
constexpr bool kDelaysFactors = kMultipliesSmallBytes && !kAddsBytes;

// Calls body(Kind()); returns 1 without a call for an unknown kind.
template <typename Body>
inline int32_t with_kind(int32_t kind, Body body) {
    switch (kind) {
        case kQ4_0: body(Q4_0()); return 0;
        case kQ4_1: body(Q4_1()); return 0;
        case kQ5_0: body(Q5_0()); return 0;
        case kQ5_1: body(Q5_1()); return 0;
        case kQ8_0: body(Q8_0()); return 0;
        case kQ2_K: body(Q2_K()); return 0;
        case kQ3_K: body(Q3_K()); return 0;
        case kQ4_K: body(Q4_K()); return 0;
        case kQ5_K: body(Q5_K()); return 0;
        case kQ6_K: body(Q6_K()); return 0;
        default: return 1;
    }
}

}  // namespace
