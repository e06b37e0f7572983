"""Launch utilities: block sizes, row strides, and device functions shared by kernels.

With `TRITON_INTERPRET=1` in the environment at import time, kernels run in the interpreter on the
CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor

INTERPRETED: Final[bool] = bool(triton.knobs.runtime.interpret)
L2_EPS: Final = tl.constexpr(1e-6)
"""Added to the sum of squares of what is normalised to length 1."""
MIN_DOT_SIZE: Final = 16
"""Minimum side of a matrix product (`tl.dot`)."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A tensor [..., width] as rows with two strides."""

    tensor: Tensor
    inner: int
    """Rows per group, `inner_stride` elements apart; groups are `outer_stride` apart."""
    outer_stride: int
    inner_stride: int
    count: int
    width: int


def rows_of(x: Tensor) -> Rows:
    """Return the rows of x; copies x if it needs more than two strides."""
    count = x.numel() // max(1, x.shape[-1])
    width = x.shape[-1]
    x = x if x.dim() > 1 else x.reshape(1, -1)
    if x.dim() > 3 or x.stride(-1) != 1:
        x = x.reshape(count, width).contiguous()
    if x.dim() == 2:
        return Rows(x, 1, x.stride(0), 0, count, width)
    return Rows(x, x.shape[1], x.stride(0), x.stride(1), count, width)


def next_power_of_2(size: int, least: int = 1) -> int:
    """Return the next power of two, at least `least`."""
    return max(least, 1 << max(0, size - 1).bit_length())


def uses_float32(*tensors: Tensor) -> bool:
    """Return whether products are computed in float32: for float32 tensors and in the interpreter.

    The interpreter has no bfloat16.
    """
    return INTERPRETED or any(tensor.dtype == torch.float32 for tensor in tensors)


def wide_precision() -> str:
    """Return how `tl.dot` multiplies float32 to nearly its precision.

    CUDA's matrix units multiply three pairs of shorter numbers; without them a product of chunks
    would spill the registers of its threads.
    """
    if INTERPRETED:
        return "ieee"
    target = triton.runtime.driver.active.get_current_target()
    return "tf32x3" if target.backend == "cuda" else "ieee"


def warps(elements: int) -> int:
    """Return the number of warps for a block of `elements`."""
    return max(1, min(16, elements // 512))


@triton.jit
def product(a, b, acc, WIDE: tl.constexpr):
    """Return acc + a @ b, without rounding float32 to fewer bits."""
    if WIDE:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        return tl.dot(a, b, acc)


@triton.jit
def exponential(x, least):
    """Return exp(x - least), and 0 where both are -inf."""
    return tl.exp(x - tl.where(least == float("-inf"), 0.0, least))


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x)) without overflow."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, small) / (1.0 + small)


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent."""
    return 2.0 * sigmoid(2.0 * x) - 1.0


@triton.jit
def find_segment(numbers, count, target):
    """Return the last index below `count` with numbers[index] <= `target`; numbers ascend from
    0.
    """
    low = 0
    high = count
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(numbers + middle) <= target:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def find_segments(numbers, count, targets):
    """Return `find_segment` of each of `targets`."""
    low = targets * 0
    span = count
    while span > 1:
        half = span // 2
        low = tl.where(tl.load(numbers + low + half) <= targets, low + half, low)
        span -= half
    return low


@triton.jit
def unknown_zero(number):
    """Return 0, which the compiler does not know, for a number that is not negative.

    Addresses that depend on it are computed where they are used. Others may be computed before a
    loop, and take registers from it.
    """
    return tl.minimum(number, 0)
