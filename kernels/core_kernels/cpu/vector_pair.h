// A vector as two halves, each of which is a vector or again a pair.
//
// GCC keeps vectors that are wider than a register in memory: a loop over sums of them stores and
// loads each in every pass, and comparisons are made lane by lane. The halves of a pair stay in
// registers. Operators are those of GCC's vectors; `select` stands for `?:`, and `convert` for
// __builtin_convertvector, which classes cannot have.
#pragma once

#include <type_traits>

namespace {

template <typename T>
using IfNumber = std::enable_if_t<std::is_arithmetic_v<T>, int>;

template <typename Half>
struct VectorPair {
    Half low, high;

    // Reinterprets the bits.
    template <typename Other>
    explicit operator VectorPair<Other>() const {
        return {(Other)low, (Other)high};
    }

    auto operator[](int lane) const {
        constexpr int kHalf = sizeof(Half) / sizeof(decltype(low[0]));
        return lane < kHalf ? low[lane] : high[lane - kHalf];
    }

    VectorPair operator-() const { return {-low, -high}; }
};

#define PAIR_OPERATOR(op)                                                             \
    template <typename Half>                                                          \
    inline VectorPair<Half> operator op(VectorPair<Half> a, VectorPair<Half> b) {     \
        return {a.low op b.low, a.high op b.high};                                    \
    }                                                                                 \
    template <typename Half, typename Number, IfNumber<Number> = 0>                   \
    inline VectorPair<Half> operator op(VectorPair<Half> a, Number b) {               \
        return {a.low op b, a.high op b};                                             \
    }                                                                                 \
    template <typename Half, typename Number, IfNumber<Number> = 0>                   \
    inline VectorPair<Half> operator op(Number a, VectorPair<Half> b) {               \
        return {a op b.low, a op b.high};                                             \
    }                                                                                 \
    template <typename Half, typename Other>                                          \
    inline VectorPair<Half>& operator op##=(VectorPair<Half>& a, const Other& b) {    \
        return a = a op b;                                                            \
    }

// Comparisons make a pair of masks.
#define PAIR_COMPARISON(op)                                                           \
    template <typename Half>                                                          \
    inline auto operator op(VectorPair<Half> a, VectorPair<Half> b) {                 \
        return VectorPair<decltype(a.low op b.low)>{a.low op b.low, a.high op b.high}; \
    }                                                                                 \
    template <typename Half, typename Number, IfNumber<Number> = 0>                   \
    inline auto operator op(VectorPair<Half> a, Number b) {                           \
        return VectorPair<decltype(a.low op b)>{a.low op b, a.high op b};             \
    }

PAIR_OPERATOR(+)
PAIR_OPERATOR(-)
PAIR_OPERATOR(*)
PAIR_OPERATOR(/)
PAIR_OPERATOR(&)
PAIR_OPERATOR(|)
PAIR_OPERATOR(^)
PAIR_OPERATOR(<<)
PAIR_OPERATOR(>>)
PAIR_COMPARISON(==)
PAIR_COMPARISON(!=)
PAIR_COMPARISON(<)
PAIR_COMPARISON(>)
PAIR_COMPARISON(<=)
PAIR_COMPARISON(>=)
#undef PAIR_OPERATOR
#undef PAIR_COMPARISON

// Returns `a` in lanes where the mask is set, else `b`.
template <typename Mask, typename Vector>
inline Vector select(Mask mask, Vector a, Vector b) {
    return mask ? a : b;
}

template <typename Mask, typename Half>
inline VectorPair<Half> select(VectorPair<Mask> mask, VectorPair<Half> a, VectorPair<Half> b) {
    return {select(mask.low, a.low, b.low), select(mask.high, a.high, b.high)};
}

// Returns the numbers of a vector as another type of number.
template <typename To>
struct Converter {
    template <typename From>
    static To run(From from) {
        return __builtin_convertvector(from, To);
    }
};

template <typename Half>
struct Converter<VectorPair<Half>> {
    template <typename From>
    static VectorPair<Half> run(VectorPair<From> from) {
        return {Converter<Half>::run(from.low), Converter<Half>::run(from.high)};
    }
};

template <typename To, typename From>
inline To convert(From from) {
    return Converter<To>::run(from);
}

}  // namespace
