"""GEMM of four-bit floats (E2M1) with an e4m3 scale for each 16, and a factor for each row: NVFP4.

x is rounded to the same format. Products are those of `block_scaled`. A weight is bytes: codes as
there, then scales [rows, groups], then float32 factors [rows].
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.block_scaled import BlockScaled, BlockScaledOps, nearest, row_bytes

Tensor = torch.Tensor

GROUP: Final = tl.constexpr(16)
"""Elements per scale."""
CHUNK_GROUPS: Final = 256
"""Groups that a program rounds at a time."""
LARGEST: Final = tl.constexpr(6.0)
"""The largest four-bit float."""
LARGEST_SCALE: Final = tl.constexpr(448.0)
MIN_FACTOR: Final = tl.constexpr(2.0**-120)
SMALLEST_NORMAL: Final = tl.constexpr(2.0**-6)
"""The smallest normal e4m3 float."""
SUBNORMALS: Final = tl.constexpr(512.0)
"""Its subnormal floats are multiples of 1 / 512."""
TO_INTEGER: Final = tl.constexpr(1.5 * 2.0**23)
"""Added to a small float and subtracted, rounds it to an integer, ties to even."""


class NvFp4Ops(BlockScaledOps):
    """Products of weights and x in NVFP4; those of float32 x use decoded weights."""

    group: int = GROUP.value
    has_factors: bool = True

    def _stored(self, scales: Tensor) -> Tensor:
        """Return what is stored of whole scales: factors are halved instead."""
        return scales

    def _rounded(self, x: Tensor) -> BlockScaled:
        """Return the rows of x in the format of the weights."""
        return round_rows(x)


def round_rows(x: Tensor) -> BlockScaled:
    """Return the rows of x [n, width] in NVFP4."""
    count, width = x.shape
    codes, groups = row_bytes(width, GROUP.value)
    numbers = torch.empty((count, codes), dtype=torch.uint8, device=x.device)
    scales = torch.empty((count, groups), dtype=torch.uint8, device=x.device)
    factors = torch.empty(count, dtype=torch.float32, device=x.device)
    _round_nvfp4[count,](
        x, x.stride(0), x.stride(1), numbers, scales, factors, width, codes, groups,
        GROUP=GROUP.value, GROUPS=CHUNK_GROUPS, num_warps=4,
    )  # fmt: skip
    return BlockScaled(numbers, scales.view(torch.float8_e4m3fn), factors)


@triton.jit
def _e4m3_bytes(x):
    """Return the bytes of the nearest e4m3 floats to positive x up to 448, ties to even."""
    bits = x.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    small = ((x * SUBNORMALS + TO_INTEGER) - TO_INTEGER).to(tl.int32)
    return tl.where(x < SMALLEST_NORMAL, small, normal)


@triton.jit
def _of_e4m3_bytes(byte):
    """Return the float32 numbers of bytes of positive e4m3 floats."""
    normal = ((byte + (120 << 3)) << 20).to(tl.float32, bitcast=True)
    return tl.where(byte < 8, byte.to(tl.float32) / SUBNORMALS, normal)


@triton.jit
def _round_nvfp4(
    x, x_row, x_element, codes, scales, factors, width, row_bytes, groups,
    GROUP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """One program: a row. The factor of a row with a number that is none is none."""
    row = tl.program_id(0).to(tl.int64)
    highest = tl.zeros((), tl.int32)
    for start in range(0, groups * GROUP, GROUPS * GROUP):
        element = start + tl.arange(0, GROUPS * GROUP)
        read = tl.load(x + row * x_row + element * x_element, mask=element < width, other=0.0)
        bits = tl.abs(read.to(tl.float32)).to(tl.int32, bitcast=True)
        # Numbers that are none have the largest bits of all.
        highest = tl.maximum(highest, tl.max(bits, 0))
    finite = highest < 0x7F800000
    largest = tl.where(finite, highest.to(tl.float32, bitcast=True), 0.0)
    factor = tl.maximum(largest / (LARGEST * LARGEST_SCALE), MIN_FACTOR)
    tl.store(factors + row, tl.where(finite, factor, float("nan")))
    for first in range(0, groups, GROUPS):
        group = first + tl.arange(0, GROUPS)
        at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        part = tl.load(x + row * x_row + at * x_element, mask=at < width, other=0.0)
        part = part.to(tl.float32)
        part = tl.where(finite, part, 0.0)
        share = tl.max(tl.abs(part), 1) / (LARGEST * factor)
        byte = _e4m3_bytes(tl.minimum(share, LARGEST_SCALE))
        scale = _of_e4m3_bytes(byte) * factor
        found = nearest(part / tl.where(byte > 0, scale, float("inf"))[:, None])
        low, high = tl.split(tl.reshape(found, (GROUPS, GROUP // 2, 2)))
        to = group[:, None] * (GROUP // 2) + tl.arange(0, GROUP // 2)[None, :]
        both = (low | (high << 4)).to(tl.uint8)
        tl.store(codes + row * row_bytes + to, both, mask=(group < groups)[:, None])
        tl.store(scales + row * groups + group, byte.to(tl.uint8), mask=group < groups)
