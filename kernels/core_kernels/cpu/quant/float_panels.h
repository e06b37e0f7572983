// Layout of weights of eight- or four-bit floats with scales, and their decoding.
//
// A panel of 64 output rows (the last one: as many tiles of sixteen as are left) stores the row
// factors, if any. Then, for each group of inputs, it stores the scales of its rows and word after
// word of all rows. A word has four inputs with the second and third swapped, so that its halves
// are pairs in bfloat16 order. With four bits a word has eight inputs: four in the low nibbles,
// then four in the high nibbles.
#pragma once

#include "cpu/quant/floats.h"
#include "cpu/gemm/panel_work.h"

namespace {

constexpr int64_t kQuad = 4;            // inputs that are decoded together
constexpr int64_t kInputsTogether = 8;  // rows are padded to a multiple
constexpr int kByteOrder[kQuad] = {0, 2, 1, 3};

struct FloatLayout {
    int64_t rows, width, group, bits;
    int64_t scales;
    int64_t scale_bytes, factor_bytes;  // per column

    FloatLayout(int64_t rows, int64_t width, FloatFormat format)
        : rows(rows),
          width(width),
          group(format.group),
          bits(format.bits()),
          scales(format.scales),
          scale_bytes(scales == kWhole    ? sizeof(float)
                      : scales == kShares ? sizeof(int16_t)
                                          : 1),
          factor_bytes(scales == kShares ? sizeof(float) : 0) {}

    int64_t filled() const { return rounded_up(width, kInputsTogether); }
    int64_t groups() const { return (width + group - 1) / group; }
    int64_t inputs(int64_t index) const { return std::min(group, filled() - index * group); }
    int64_t panels() const { return (rows + kPanel - 1) / kPanel; }
    int64_t columns(int64_t panel) const {
        return std::min<int64_t>(kPanel, rounded_up(rows, kLanes) - panel * kPanel);
    }
    int64_t row_bytes() const {
        return factor_bytes + groups() * scale_bytes + filled() * bits / 8;
    }
    int64_t bytes() const { return rounded_up(rows, kLanes) * row_bytes(); }
    int64_t panel_at(int64_t panel) const { return panel * kPanel * row_bytes(); }
    // In a panel with this number of columns.
    int64_t group_at(int64_t index, int64_t columns) const {
        return columns * (factor_bytes + index * (scale_bytes + group * bits / 8));
    }
    // Of a column's codes: the byte of an input, and the bit shift within it.
    int64_t byte_of(int64_t input, int64_t columns) const {
        return input * bits / 32 * columns * kQuad + kByteOrder[input % kQuad];
    }
    int shift_of(int64_t input) const { return bits == 4 ? input / kQuad % 2 * 4 : 0; }
    int64_t codes_at(int64_t columns) const { return columns * scale_bytes; }
    // The scales of sixteen columns of a group (or their int16 fractions).
    Floats load_scales(const uint8_t* group, int64_t column) const {
        const uint8_t* from = group + column * scale_bytes;
        if (scales == kWhole) return load(reinterpret_cast<const float*>(from));
        if (scales == kPowers) return load_powers(from);
        return __builtin_convertvector((Ints)(load_bits(from) << 16) >> 16, Floats);
    }
};

// Decoder of one kind: `decode_float` takes one code per lane; `decode_pairs` makes two bfloat16
// per lane.
template <int kKind>
struct Decoder {
    explicit Decoder(const float*) {}

    static constexpr int kBits = 8;
    static constexpr int kFraction = kKind == kE4M3 ? 3 : 2;  // bits
    static constexpr uint32_t kBias =
        kKind == kE4M3 ? 120 : 112;  // difference to the exponent bias of float32
    static constexpr uint32_t kSpecial =
        kKind == kE4M3 ? 0x7f : 0x7c;  // codes from here are not finite
    static constexpr float kMin = kKind == kE4M3 ? 0x1p-9f : 0x1p-16f;

    // Returns sixteen codes as float32, one per lane.
    static Floats decode_float(Words codes) {
        const Words own = codes & 0x7f, sign = (codes & 0x80) << 24, bits = own << (23 - kFraction);
        const Floats small = __builtin_convertvector((Ints)own, Floats) * kMin;
        Words found = own < (1u << kFraction) ? (Words)small : bits + (kBias << 23);
        found = own >= kSpecial ? bits | 0x7f800000 : found;
        return (Floats)(found | sign);
    }
    static Words decode_pairs(Words codes);
};

// Table lookup of sixteen floats; rounded to bfloat16 for pairs.
template <>
struct Decoder<kTabled> {
    static constexpr int kBits = 4;

    explicit Decoder(const float* table) : exact_(load(table)) {
        BFloat16 near[kLanes];
        store(near, exact_);
        rounded_ = load(near);
        for (int i = 0; i < 2; ++i)
            std::memcpy(reinterpret_cast<char*>(&halves_) + i * sizeof near, near, sizeof near);
    }

    Floats decode_float(Words codes) const { return __builtin_shuffle(exact_, (Ints)codes); }
    Words decode_pairs(Words codes) const {
#if defined(__AVX512BW__)
        return (Words)_mm512_permutexvar_epi16((__m512i)codes, (__m512i)halves_);
#else
        const Words first = (Words)__builtin_shuffle(rounded_, (Ints)(codes & 0xff));
        return first >> 16 | (Words)__builtin_shuffle(rounded_, (Ints)(codes >> 16));
#endif
    }

private:
    Floats exact_, rounded_;
    Words halves_;  // repeated twice
};

#if defined(__AVX512BW__)
// bfloat16 bits by the lower seven bits of a code.
template <int kKind>
struct Table {
    alignas(64) uint16_t bits[128];

    constexpr Table() : bits() {
        using Own = Decoder<kKind>;
        for (uint32_t code = 0; code < 128; ++code) {
            uint32_t exponent = (code >> Own::kFraction) + Own::kBias,
                     fraction = code % (1u << Own::kFraction);
            if (code < 1u << Own::kFraction && code > 0)  // normalizes a subnormal number
                for (exponent = Own::kBias + 1; fraction < 1u << Own::kFraction; fraction *= 2)
                    --exponent;
            fraction %= 1u << Own::kFraction;
            bits[code] = static_cast<uint16_t>(exponent << 7 | fraction << (7 - Own::kFraction));
            if (code == 0) bits[code] = 0;
            if (code >= Own::kSpecial)
                bits[code] = static_cast<uint16_t>(0x7f80 | fraction << (7 - Own::kFraction));
        }
    }
};

template <int kKind>
constexpr Table<kKind> kTable;
#endif

template <int kKind>
Words Decoder<kKind>::decode_pairs(Words codes) {
#if defined(__AVX512BW__)
    const uint16_t* table = kTable<kKind>.bits;
    const __m512i own = (__m512i)codes;
    const __m512i low =
        _mm512_permutex2var_epi16(_mm512_load_si512(table), own, _mm512_load_si512(table + 32));
    const __m512i high = _mm512_permutex2var_epi16(_mm512_load_si512(table + 64), own,
                                                   _mm512_load_si512(table + 96));
    const __m512i found =
        _mm512_mask_mov_epi16(low, _mm512_test_epi16_mask(own, _mm512_set1_epi16(0x40)), high);
    return (Words)found | (codes & 0x00800080) << 8;
#else
    const Words first = (Words)decode_float(codes & 0xff),
                second = (Words)decode_float(codes >> 16);
    return first >> 16 | (second & 0xffff0000);
#endif
}

// Codes of a quad of inputs, one per byte.
template <int kBits>
inline Words quad_of(Words words, int at) {
    return kBits == 8 ? words : words >> (4 * at) & 0x0f0f0f0f;
}

// Decodes one quad of sixteen columns into units of linear.cpp.
template <int kKind>
inline void decode_quad(BFloat16* to, Words codes, int64_t columns, const Decoder<kKind>& numbers) {
    const Words first = numbers.decode_pairs(codes & 0x00ff00ff),
                second = numbers.decode_pairs(codes >> 8 & 0x00ff00ff);
    std::memcpy(to, &first, sizeof first);
    std::memcpy(to + columns * 2, &second, sizeof second);
}

template <int kKind>
inline void decode_quad(float* to, Words codes, int64_t columns, const Decoder<kKind>& numbers) {
    for (int64_t i = 0; i < kQuad; ++i)
        store(to + i * columns, numbers.decode_float(codes >> (8 * kByteOrder[i]) & 0xff));
}

// Decodes `inputs` codes of each column, and prefetches as many bytes from `ahead`.
template <int kKind, typename T>
inline void decode(T* to, const uint8_t* from, int64_t columns, int64_t inputs,
                   const uint8_t* ahead, const Decoder<kKind>& numbers) {
    constexpr int kBits = Decoder<kKind>::kBits, kQuads = 8 / kBits;
    for (int64_t k = 0; k < inputs; k += kQuad * kQuads, to += columns * kQuad * kQuads)
        for (int64_t column = 0; column < columns;
             column += kLanes, from += sizeof(Words), ahead += kCacheLine) {
            __builtin_prefetch(ahead, 0, 2);
            Words words;
            std::memcpy(&words, from, sizeof words);
            for (int at = 0; at < kQuads; ++at)
                decode_quad(to + at * columns * kQuad + column * (sizeof(float) / sizeof(T)),
                            quad_of<kBits>(words, at), columns, numbers);
        }
}

}  // namespace
