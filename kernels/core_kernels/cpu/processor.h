// Which variants of the kernels this processor runs.
#pragma once

namespace processor {

bool runs(const char* variant);

// Whether products with subnormal numbers take no longer than others. Intel's cores interrupt their
// pipeline for them.
bool multiplies_subnormals();

}  // namespace processor
