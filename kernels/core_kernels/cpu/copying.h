// Copies that are summed in the same pass over memory.
#pragma once

#include <cstdint>

namespace copying {

// Copies `count` pieces of memory, `sizes` bytes each, and sums each: 64-bit words modulo 2^64 where 8 divides its size, else
// bytes. `to` null: they are only summed. Each byte is read once, so what is summed is what was copied, whoever writes to
// `from` meanwhile.
void summed(void* const* to, const void* const* from, const int64_t* sizes, int64_t count, uint64_t* sums);

}  // namespace copying
