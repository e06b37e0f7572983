// Cache-line aligned memory: a vector load across two lines has half the throughput.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

namespace {

constexpr std::align_val_t kLine{64};

struct FreeLines {
    void operator()(void* memory) const { ::operator delete[](memory, kLine); }
};

template <typename T>
using Buffer = std::unique_ptr<T[], FreeLines>;

// Zero-initialized.
template <typename T>
Buffer<T> make_buffer(int64_t count) {
    void* memory = ::operator new[](count * sizeof(T), kLine);
    std::memset(memory, 0, count * sizeof(T));
    return Buffer<T>(static_cast<T*>(memory));
}

}  // namespace
