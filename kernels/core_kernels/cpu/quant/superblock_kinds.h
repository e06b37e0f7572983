// GGUF block formats, decoded sixteen columns at a time. Each kind has constants and decoders.
//
// A panel interleaves one block of all its columns: first the halves (float16 scales), column after
// column, then word after word of the rest in file order. So a block takes the file's bytes and no
// more. Four consecutive bytes of a row, which have the same input order in every kind, form a
// lane.
//
// A number is scale * (code - kZero), or scale * code - min. Codes are unsigned quads: four inputs
// a word. Inputs are counted in units of 32; kGroup of them share a scale.
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

struct Q4_0 {
    static constexpr int64_t kInputs = 32, kBytes = 18, kHalves[] = {0}, kWordsAt = 2, kGroup = 32,
                             kZero = 8, kMaxCode = 15;
    static constexpr bool kHasMin = false;
    static Words quad(const BlockView& p, int64_t, int i) {
        return (p.word(i % 4) >> (i / 4 * 4)) & 0x0f0f0f0f;
    }
    static Floats scale(const BlockView& p, int64_t, int) { return p.half(0); }
};

struct Q4_1 : Q4_0 {
    static constexpr int64_t kBytes = 20, kHalves[] = {0, 2}, kWordsAt = 4, kZero = 0;
    static constexpr bool kHasMin = true;
    static Floats minimum(const BlockView& p, int64_t, int) { return -p.half(1); }
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
    static Floats minimum(const BlockView& p, int64_t, int) { return -p.half(1); }
};

struct Q8_0 : Q4_0 {
    static constexpr int64_t kBytes = 34, kZero = 128, kMaxCode = 255;
    static Words quad(const BlockView& p, int64_t, int i) { return p.word(i) ^ 0x80808080; }
};

struct Q2_K {
    static constexpr int64_t kInputs = 256, kBytes = 84, kHalves[] = {80, 82}, kWordsAt = 0,
                             kGroup = 16, kZero = 0, kMaxCode = 3;
    static constexpr bool kHasMin = true;
    static Words quad(const BlockView& p, int64_t unit, int i) {
        return (p.word(4 + unit / 4 * 8 + i) >> static_cast<int>(unit % 4 * 2)) & 0x03030303;
    }
    static Floats scale(const BlockView& p, int64_t unit, int part) {
        return p.half(0) * number(byte(p, 2 * unit + part) & 15);
    }
    static Floats minimum(const BlockView& p, int64_t unit, int part) {
        return p.half(1) * number(byte(p, 2 * unit + part) >> 4);
    }

private:
    static Words byte(const BlockView& p, int64_t at) {
        return (p.word(at / 4) >> static_cast<int>(at % 4 * 8)) & 0xff;
    }
};

struct Q3_K {
    static constexpr int64_t kInputs = 256, kBytes = 110, kHalves[] = {108}, kWordsAt = 0,
                             kGroup = 16, kZero = 4, kMaxCode = 7;
    static constexpr bool kHasMin = false;
    static Words quad(const BlockView& p, int64_t unit, int i) {
        const Words low =
            (p.word(8 + unit / 4 * 8 + i) >> static_cast<int>(unit % 4 * 2)) & 0x03030303;
        return low | ((p.word(i) >> static_cast<int>(unit)) & 0x01010101) << 2;
    }
    static Floats scale(const BlockView& p, int64_t unit, int part) {
        const int at = static_cast<int>(2 * unit) + part, byte = at % 4 * 8;
        const Words low = (p.word(24 + at % 8 / 4) >> (byte + at / 8 * 4)) & 15,
                    high = (p.word(26) >> (byte + at / 4 * 2)) & 3;
        return p.half(0) * number((low | high << 4) - 32);
    }
};

struct Q4_K {
    static constexpr int64_t kInputs = 256, kBytes = 144, kHalves[] = {0, 2}, kWordsAt = 4,
                             kGroup = 32, kZero = 0, kMaxCode = 15;
    static constexpr bool kHasMin = true;
    static Words quad(const BlockView& p, int64_t unit, int i) {
        return (p.word(3 + unit / 2 * 8 + i) >> static_cast<int>(unit % 2 * 4)) & 0x0f0f0f0f;
    }
    static Floats scale(const BlockView& p, int64_t unit, int) {
        return p.half(0) * number(unit < 4 ? first(p, 0, unit) : later(p, 0, unit));
    }
    static Floats minimum(const BlockView& p, int64_t unit, int) {
        return p.half(1) * number(unit < 4 ? first(p, 1, unit) : later(p, 1, unit));
    }

private:
    // Six-bit values: units 0 to 3 use the low bits of a byte; its top two bits belong to a later
    // unit; word 2 has the rest.
    static Words first(const BlockView& p, int64_t word, int64_t unit) {
        return (p.word(word) >> static_cast<int>(8 * unit)) & 63;
    }
    static Words later(const BlockView& p, int64_t word, int64_t unit) {
        const int at = static_cast<int>(8 * (unit - 4));
        return ((p.word(2) >> (at + 4 * static_cast<int>(word))) & 15) |
               ((p.word(word) >> (at + 6)) & 3) << 4;
    }
};

struct Q5_K : Q4_K {
    static constexpr int64_t kBytes = 176, kMaxCode = 31;
    static Words quad(const BlockView& p, int64_t unit, int i) {
        const Words low =
            (p.word(11 + unit / 2 * 8 + i) >> static_cast<int>(unit % 2 * 4)) & 0x0f0f0f0f;
        return low | ((p.word(3 + i) >> static_cast<int>(unit)) & 0x01010101) << 4;
    }
};

struct Q6_K {
    static constexpr int64_t kInputs = 256, kBytes = 210, kHalves[] = {208}, kWordsAt = 0,
                             kGroup = 16, kZero = 32, kMaxCode = 63;
    static constexpr bool kHasMin = false;
    static Words quad(const BlockView& p, int64_t unit, int i) {
        const int64_t half = unit / 4, quarter = unit % 4;
        const Words low =
            (p.word(half * 16 + quarter % 2 * 8 + i) >> static_cast<int>(quarter / 2 * 4)) &
            0x0f0f0f0f;
        return low | ((p.word(32 + half * 8 + i) >> static_cast<int>(2 * quarter)) & 0x03030303)
                         << 4;
    }
    static Floats scale(const BlockView& p, int64_t unit, int part) {
        const int64_t at = 2 * unit + part;
        const Ints bits = (Ints)(p.word(48 + at / 4) << static_cast<int>(24 - at % 4 * 8)) >> 24;
        return p.half(0) * number((Words)bits);
    }
};

template <typename Kind>
constexpr int64_t num_halves() {
    return sizeof(Kind::kHalves) / sizeof(Kind::kHalves[0]);
}

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
