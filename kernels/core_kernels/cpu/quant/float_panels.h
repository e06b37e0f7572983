// Layout of weights of eight- or four-bit floats with scales, and their decoding.
//
// A panel of 64 output rows (the last one: as many tiles of sixteen as are left) stores the row
// factors, if any. Then, for each group of inputs, it stores the scales of its rows and word after
// word of all rows. A word has four inputs with the second and third swapped, so that its halves
// are pairs in bfloat16 order. With four bits a word has eight inputs: four in the low nibbles,
// then four in the high nibbles.
#pragma once

#include "cpu/quant/floats.h"
#include "cpu/quant/float_bytes.h"
#include "cpu/gemm/panel_work.h"
#include "cpu/vector_memory.h"

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
        return convert<Floats>((Ints)(load_bits(from) << 16) >> 16);
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
        const Floats small = convert<Floats>((Ints)own) * kMin;
        Words found = select(own < (1u << kFraction), (Words)small, bits + (kBias << 23));
        found = select(own >= kSpecial, bits | 0x7f800000, found);
        return (Floats)(found | sign);
    }
    static Words decode_pairs(Words codes);
};

// Table lookup of sixteen floats; rounded to bfloat16 for pairs.
template <>
struct Decoder<kTabled> {
    static constexpr int kBits = 4;

    explicit Decoder(const float* table) {
        BFloat16 near[kLanes];
        store(near, load(table));
        for (int i = 0; i < kLanes; ++i) {
            exact_[i] = table[i];
            rounded_[i] = widened(near[i]);
            halves_[i] = halves_[i + kLanes] = near[i].bits;
        }
    }
    // The same with the entries rounded to bfloat16.
    Decoder rounded() const { return Decoder(rounded_); }

    Floats decode_float(Words codes) const { return lookup(exact_, codes); }
    Words decode_pairs(Words codes) const {
#if defined(__AVX512BW__)
        return (Words)_mm512_permutexvar_epi16((__m512i)codes, _mm512_load_si512(halves_));
#else
        const Words first = (Words)lookup(rounded_, codes & 0xff);
        return first >> 16 | (Words)lookup(rounded_, codes >> 16);
#endif
    }

private:
    static Floats lookup(const float (&table)[kLanes], Words codes) {
#if defined(__AVX512F__)
        return (Floats)_mm512_permutexvar_ps((__m512i)codes, _mm512_load_ps(table));
#elif defined(__AVX2__)
        const __m256 low = _mm256_load_ps(table), high = _mm256_load_ps(table + 8);
        return (Floats)in_registers(codes, [&](auto own) {
            const __m256i at = (__m256i)own;
            return (decltype(own))_mm256_blendv_ps(_mm256_permutevar8x32_ps(low, at),
                                                   _mm256_permutevar8x32_ps(high, at),
                                                   (__m256)_mm256_slli_epi32(at, 28));
        });
#else
        uint32_t own[kLanes];
        float found[kLanes];
        store_vector(own, codes);
        for (int i = 0; i < kLanes; ++i) found[i] = table[own[i]];
        return load(found);
#endif
    }

    alignas(64) float exact_[kLanes], rounded_[kLanes];
    alignas(64) uint16_t halves_[2 * kLanes];
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

// Both bfloat16 pairs of a quad.
struct QuadPairs {
    Words first, second;
};

template <int kKind>
inline QuadPairs pairs_of(Words codes, const Decoder<kKind>& numbers) {
#if defined(__AVX2__) && !defined(__AVX512BW__)
    if constexpr (kKind == kE4M3) {
        QuadPairs pairs;
        pairs.first.low = split_bytes(codes.low, &pairs.second.low);
        pairs.first.high = split_bytes(codes.high, &pairs.second.high);
        return pairs;
    }
#endif
    return {numbers.decode_pairs(codes & 0x00ff00ff),
            numbers.decode_pairs(codes >> 8 & 0x00ff00ff)};
}

// The four inputs of a quad as float32; all codes of eight bits are bfloat16 numbers.
template <int kKind>
inline void numbers_of(Floats (&numbers)[kQuad], Words codes, const Decoder<kKind>& decoder) {
#if defined(__AVX2__) && !defined(__AVX512BW__)
    if constexpr (kKind == kE5M2) {
        __m256 low[kQuad], high[kQuad];
        widen_halves((__m256i)codes.low, low);
        widen_halves((__m256i)codes.high, high);
        for (int i = 0; i < kQuad; ++i) numbers[i] = {low[i], high[i]};
        return;
    }
#endif
    const QuadPairs pairs = pairs_of(codes, decoder);
    numbers[0] = (Floats)(pairs.first << 16);
    numbers[1] = (Floats)(pairs.first & 0xffff0000);
    numbers[2] = (Floats)(pairs.second << 16);
    numbers[3] = (Floats)(pairs.second & 0xffff0000);
}

// Decodes one quad of sixteen columns into units of linear.cpp.
template <int kKind>
inline void decode_quad(BFloat16* to, Words codes, int64_t columns, const Decoder<kKind>& numbers) {
    const QuadPairs pairs = pairs_of(codes, numbers);
    store_vector(to, pairs.first);
    store_vector(to + columns * 2, pairs.second);
}

template <int kKind>
inline void decode_quad(float* to, Words codes, int64_t columns, const Decoder<kKind>& numbers) {
    if constexpr (kKind == kTabled) {
        for (int64_t i = 0; i < kQuad; ++i)
            store(to + i * columns, numbers.decode_float(codes >> (8 * kByteOrder[i]) & 0xff));
    } else {
        Floats inputs[kQuad];
        numbers_of(inputs, codes, numbers);
        for (int64_t i = 0; i < kQuad; ++i) store(to + i * columns, inputs[i]);
    }
}

// Decodes `inputs` codes of `width` columns from `first`, of a panel with this number of columns,
// and prefetches as many bytes from `ahead`.
template <int kKind, typename T>
inline void decode(T* to, const uint8_t* from, int64_t columns, int64_t first, int64_t width,
                   int64_t inputs, const uint8_t* ahead, const Decoder<kKind>& numbers) {
    constexpr int kBits = Decoder<kKind>::kBits, kQuads = 8 / kBits;
    const int64_t step = columns * kQuad;  // bytes
    from += first * kQuad;
    for (int64_t k = 0; k < inputs;
         k += kQuad * kQuads, to += width * kQuad * kQuads, from += step, ahead += step)
        for (int64_t column = 0; column < width; column += kLanes) {
            __builtin_prefetch(ahead + column * kQuad, 0, 2);
            const Words words = load_vector<Words>(from + column * kQuad);
            for (int at = 0; at < kQuads; ++at)
                decode_quad(to + at * width * kQuad + column * (sizeof(float) / sizeof(T)),
                            quad_of<kBits>(words, at), width, numbers);
        }
}

}  // namespace
