// What the blocks of GGUF files hold, sixteen columns at a time. Each kind is facts, and how to get at its codes.
//
// A panel keeps a block of all its columns together: first the halves (what all codes of a block are scaled by), column
// after column, then word after word of the rest, in the file's order, each of all columns. So a block takes the file's
// bytes and no more, and four neighbouring bytes of a row, which stand for inputs in the same order in every kind, are a lane.
//
// A number is scale * (code - kZero), or scale * code - least. Codes are unsigned and come in quads: four inputs a word.
// Inputs are counted in units of 32; kGroup of them share a scale.
#pragma once

#include "codes.h"
#include "superblocks.h"

namespace {

constexpr int64_t kUnit = 32;  // inputs of which x has a scale
constexpr int kQuads = 8;      // words of codes of a unit

// Where a tile's part of a block is.
struct Place {
    const uint8_t* halves;
    const uint8_t* words;
    int64_t columns;

    Floats half(int at) const { return load(reinterpret_cast<const Float16*>(halves) + at * columns); }
    Words word(int64_t at) const { return load_words(words + at * columns * static_cast<int64_t>(sizeof(uint32_t))); }
};

inline Floats number(Words integers) { return __builtin_convertvector((Ints)integers, Floats); }

// Bits 0 to 3 of each lane as the fifth bits of its four bytes.
inline Words fifth_bits(Words bits) { return ((bits & 0xf) * 0x02040810) & 0x10101010; }

struct Q4_0 {
    static constexpr int64_t kInputs = 32, kBytes = 18, kHalves[] = {0}, kWordsAt = 2, kGroup = 32, kZero = 8;
    static constexpr bool kHasLeast = false;
    static Words quad(const Place& p, int64_t, int i) { return (p.word(i % 4) >> (i / 4 * 4)) & 0x0f0f0f0f; }
    static Floats scale(const Place& p, int64_t, int) { return p.half(0); }
};

struct Q4_1 : Q4_0 {
    static constexpr int64_t kBytes = 20, kHalves[] = {0, 2}, kWordsAt = 4, kZero = 0;
    static constexpr bool kHasLeast = true;
    static Floats least(const Place& p, int64_t, int) { return -p.half(1); }
};

struct Q5_0 : Q4_0 {
    static constexpr int64_t kBytes = 22, kZero = 16;
    static Words quad(const Place& p, int64_t, int i) {
        return ((p.word(1 + i % 4) >> (i / 4 * 4)) & 0x0f0f0f0f) | fifth_bits(p.word(0) >> (4 * i));
    }
};

struct Q5_1 : Q5_0 {
    static constexpr int64_t kBytes = 24, kHalves[] = {0, 2}, kWordsAt = 4, kZero = 0;
    static constexpr bool kHasLeast = true;
    static Floats least(const Place& p, int64_t, int) { return -p.half(1); }
};

struct Q8_0 : Q4_0 {
    static constexpr int64_t kBytes = 34, kZero = 128;
    static Words quad(const Place& p, int64_t, int i) { return p.word(i) ^ 0x80808080; }
};

struct Q2_K {
    static constexpr int64_t kInputs = 256, kBytes = 84, kHalves[] = {80, 82}, kWordsAt = 0, kGroup = 16, kZero = 0;
    static constexpr bool kHasLeast = true;
    static Words quad(const Place& p, int64_t unit, int i) {
        return (p.word(4 + unit / 4 * 8 + i) >> static_cast<int>(unit % 4 * 2)) & 0x03030303;
    }
    static Floats scale(const Place& p, int64_t unit, int part) { return p.half(0) * number(byte(p, 2 * unit + part) & 15); }
    static Floats least(const Place& p, int64_t unit, int part) { return p.half(1) * number(byte(p, 2 * unit + part) >> 4); }

private:
    static Words byte(const Place& p, int64_t at) { return (p.word(at / 4) >> static_cast<int>(at % 4 * 8)) & 0xff; }
};

struct Q3_K {
    static constexpr int64_t kInputs = 256, kBytes = 110, kHalves[] = {108}, kWordsAt = 0, kGroup = 16, kZero = 4;
    static constexpr bool kHasLeast = false;
    static Words quad(const Place& p, int64_t unit, int i) {
        const Words low = (p.word(8 + unit / 4 * 8 + i) >> static_cast<int>(unit % 4 * 2)) & 0x03030303;
        return low | ((p.word(i) >> static_cast<int>(unit)) & 0x01010101) << 2;
    }
    static Floats scale(const Place& p, int64_t unit, int part) {
        const int at = static_cast<int>(2 * unit) + part, byte = at % 4 * 8;
        const Words low = (p.word(24 + at % 8 / 4) >> (byte + at / 8 * 4)) & 15, high = (p.word(26) >> (byte + at / 4 * 2)) & 3;
        return p.half(0) * number((low | high << 4) - 32);
    }
};

struct Q4_K {
    static constexpr int64_t kInputs = 256, kBytes = 144, kHalves[] = {0, 2}, kWordsAt = 4, kGroup = 32, kZero = 0;
    static constexpr bool kHasLeast = true;
    static Words quad(const Place& p, int64_t unit, int i) {
        return (p.word(3 + unit / 2 * 8 + i) >> static_cast<int>(unit % 2 * 4)) & 0x0f0f0f0f;
    }
    static Floats scale(const Place& p, int64_t unit, int) {
        return p.half(0) * number(unit < 4 ? first(p, 0, unit) : later(p, 0, unit));
    }
    static Floats least(const Place& p, int64_t unit, int) {
        return p.half(1) * number(unit < 4 ? first(p, 1, unit) : later(p, 1, unit));
    }

private:
    // Six bits: of units 0 to 3 those of a byte, whose upper two belong to a later unit; the rest of those is in word 2.
    static Words first(const Place& p, int64_t word, int64_t unit) { return (p.word(word) >> static_cast<int>(8 * unit)) & 63; }
    static Words later(const Place& p, int64_t word, int64_t unit) {
        const int at = static_cast<int>(8 * (unit - 4));
        return ((p.word(2) >> (at + 4 * static_cast<int>(word))) & 15) | ((p.word(word) >> (at + 6)) & 3) << 4;
    }
};

struct Q5_K : Q4_K {
    static constexpr int64_t kBytes = 176;
    static Words quad(const Place& p, int64_t unit, int i) {
        const Words low = (p.word(11 + unit / 2 * 8 + i) >> static_cast<int>(unit % 2 * 4)) & 0x0f0f0f0f;
        return low | ((p.word(3 + i) >> static_cast<int>(unit)) & 0x01010101) << 4;
    }
};

struct Q6_K {
    static constexpr int64_t kInputs = 256, kBytes = 210, kHalves[] = {208}, kWordsAt = 0, kGroup = 16, kZero = 32;
    static constexpr bool kHasLeast = false;
    static Words quad(const Place& p, int64_t unit, int i) {
        const int64_t half = unit / 4, quarter = unit % 4;
        const Words low = (p.word(half * 16 + quarter % 2 * 8 + i) >> static_cast<int>(quarter / 2 * 4)) & 0x0f0f0f0f;
        return low | ((p.word(32 + half * 8 + i) >> static_cast<int>(2 * quarter)) & 0x03030303) << 4;
    }
    static Floats scale(const Place& p, int64_t unit, int part) {
        const int64_t at = 2 * unit + part;
        const Ints bits = (Ints)(p.word(48 + at / 4) << static_cast<int>(24 - at % 4 * 8)) >> 24;
        return p.half(0) * number((Words)bits);
    }
};

template <typename Kind>
constexpr int64_t num_halves() {
    return sizeof(Kind::kHalves) / sizeof(Kind::kHalves[0]);
}

// Calls body(Kind()); returns 1, and calls nothing, for a number that is none of them.
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
