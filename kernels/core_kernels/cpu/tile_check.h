// Whether tile registers may be used, and whether they do what the kernels rely on.
#pragma once

#include "linear.h"
#include "quantized.h"

namespace tile_check {

// Asks the processor, and the system to keep registers for this process. Linux wants to be asked before the first use.
bool allowed();

// Whether products of many rows are, bit by bit, those of a row alone, which are made without tile registers.
bool agrees(const LinearOps& many, const LinearOps& alone);
bool agrees(const QuantizedOps& many, const QuantizedOps& alone);

}  // namespace tile_check
