// Checks that tile registers (AMX) are available and give the expected sums.
#pragma once

#include "cpu/gemm/linear.h"
#include "cpu/quant/quantized.h"

namespace tile_check {

// Checks CPUID and requests tile permission from Linux, which is required before first use.
bool is_supported();

// True if products of many rows equal, bit by bit, those of single rows, which do not use tile
// registers.
bool results_match(const LinearOps& many, const LinearOps& alone);
bool results_match(const QuantizedOps& many, const QuantizedOps& alone);

}  // namespace tile_check
