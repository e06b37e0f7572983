// Thread pool of the kernels, for cores that may be shared with other processes.
#pragma once

#include <cstdint>

namespace pool {

// Number of compute threads, the caller's included.
int64_t threads();
void set_threads(int64_t count);

// Calls work(context) on the calling thread and on up to `helpers` pool threads; returns when all
// calls that have begun have ended. It does not wait for helpers that have not started: `work`
// takes items until none are left, so a late helper finds nothing. A concurrent second caller
// computes alone.
void run(void (*work)(void*), void* context, int64_t helpers);

}  // namespace pool
