// Rows of x widened to float32, once per product.
#pragma once

#include "cpu/buffer.h"
#include "cpu/gemm/linear.h"
#include "cpu/gemm/micro_kernel.h"
#include "cpu/threading/parallel.h"

namespace {

constexpr int64_t kParallelWidening = 1 << 15;  // numbers; below this a second thread does not pay

// Rows of x as the micro-kernel reads them.
template <typename T>
class WideRows {
public:
    const Input<T>* from;
    int64_t stride;

    // The first `rows` rows of p.x.
    WideRows(const Product& p, int64_t rows) : stride(p.x_stride) {
        const T* x = static_cast<const T*>(p.x);
        if constexpr (std::is_same_v<Input<T>, T>) {
            from = x;
        } else {
            const int64_t width = (p.in + kLanes - 1) / kLanes * kLanes;
            stride = width + kLanes;  // rows a power of two apart would share cache sets
            wide_ = make_buffer<float>(rows * stride);
            from = wide_.get();
            // bfloat16 rows have an even number of columns.
            const int64_t numbers = (p.in + Units<T>::kNumbers - 1) / Units<T>::kNumbers *
                                    Units<T>::kNumbers;
            run_workers(rows, rows * p.in >= kParallelWidening, [&](WorkItems& items) {
                for (int64_t row; items.next(&row);)
                    widen(wide_.get() + row * stride, x + row * p.x_stride, numbers);
            });
        }
    }

private:
    static void widen(float* to, const T* numbers, int64_t count) {
        int64_t k = 0;
        for (; k + kLanes <= count; k += kLanes) store(to + k, load(numbers + k));
        if (k < count) store(to + k, load(numbers + k, count - k));
    }

    Buffer<float> wide_;
};

}  // namespace
