#include "cpu/attention/shared_prefix.h"

#include <algorithm>

void find_shared(int64_t* order, int64_t* shared, const int32_t* tables, const int64_t* lengths,
                 int64_t sequences, int64_t stride, int64_t block_size) {
    // Stale entries after the end may compare equal. That is harmless: neither sequence reads them.
    const auto begin = [=](int64_t i) { return tables + i * stride; };
    const auto end = [=](int64_t i) {
        return begin(i) + (lengths[i] + block_size - 1) / block_size;
    };
    for (int64_t i = 0; i < sequences; ++i) order[i] = i;
    std::sort(order, order + sequences, [=](int64_t a, int64_t b) {
        const auto [x, y] = std::mismatch(begin(a), end(a), begin(b), end(b));
        if (x != end(a) && y != end(b)) return *x < *y;
        if (x != end(a) || y != end(b)) return x == end(a);
        return a < b;
    });
    for (int64_t n = 0; n < sequences; ++n) {
        if (n + 1 == sequences) {
            shared[n] = 0;
            break;
        }
        const int64_t a = order[n], b = order[n + 1];
        shared[n] =
            (std::mismatch(begin(a), end(a), begin(b), end(b)).first - begin(a)) * block_size;
    }
}
