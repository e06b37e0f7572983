// Recorded calls of the library's functions, for replay.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

// One argument: a pointer, an integer or a float, in its first bytes.
struct Word {
    int64_t bits;

    template <typename T>
    T as() const {
        T value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }
};

constexpr int kMaxArguments = 15;

struct Call {
    int64_t function;  // index into the callables
    Word arguments[kMaxArguments];
};

namespace program {

// Returns 0 on success, else the function's error code.
using Callable = int32_t (*)(const Word*);

template <auto Function, typename Result, typename... Arguments, size_t... Index>
int32_t apply(Result (*)(Arguments...), const Word* words, std::index_sequence<Index...>) {
    static_assert(sizeof...(Arguments) <= kMaxArguments, "more arguments than a call has room for");
    if constexpr (std::is_void_v<Result>) {
        Function(words[Index].as<Arguments>()...);
        return 0;
    } else {
        return Function(words[Index].as<Arguments>()...);
    }
}

template <typename Result, typename... Arguments>
constexpr auto indices(Result (*)(Arguments...)) {
    return std::index_sequence_for<Arguments...>();
}

template <auto Function>
int32_t call(const Word* words) {
    return apply<Function>(Function, words, indices(Function));
}

}  // namespace program
