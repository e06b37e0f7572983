// Memory copies with a checksum computed in the same pass.
#pragma once

#include <cstdint>

namespace checksum_copy {

// Copies `count` pieces of `sizes` bytes each and computes the checksum of each: the sum of 64-bit
// words modulo 2^64 if 8 divides the size, else of bytes. With `to` null only the checksums are
// computed. Each byte is read once, so the checksum covers the copied data even if `from` changes
// meanwhile.
void copy(void* const* to, const void* const* from, const int64_t* sizes, int64_t count,
          uint64_t* sums);

}  // namespace checksum_copy
