// Which variants of the kernels this processor runs.
#pragma once

namespace processor {

bool runs(const char* variant);

}  // namespace processor
