"""GEMM of four-bit floats (E2M1) that share a scale, a power of two, in groups of 32: MXFP4.

x is rounded to the same format, and products are `tl.dot_scaled`: block-scaled matrix instructions
from compute capability 10.0, numbers decoded to bfloat16 elsewhere. A weight is bytes: two codes
each, the first of a pair in the low nibble, row by row, then exponents [rows, groups]. NVFP4
(`nvfp4.py`) has the same products.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch.nn.functional import pad

from core_kernels.triton.autotune import Autotuner, LaunchConfig, row_bucket
from core_kernels.triton.launching import MIN_DOT_SIZE, next_power_of_2
from core_kernels.triton.quantized import FOUR_BIT_FLOATS, MAX_ROWS, check_scales

Tensor = torch.Tensor

GROUP: Final = tl.constexpr(32)
"""Elements per scale."""
INNER: Final = 128
"""Columns per accumulation step; rows are padded with zeros to a multiple of it."""
EXPONENT_BIAS: Final = tl.constexpr(127)
LARGEST_EXPONENT: Final = tl.constexpr(2)
"""Exponent of the largest number, 6."""
LARGEST_BYTE: Final = tl.constexpr(254)
"""Byte of the largest scale; 255 is no number."""
ROUNDED_GROUPS: Final = 32
"""Groups that a program rounds."""
CONFIGS: Final = (LaunchConfig(128, 4, 3), LaunchConfig(64, 4, 3), LaunchConfig(128, 8, 4))
AUTOTUNE: Final = Autotuner("block-scaled", CONFIGS)


class BlockScaled(NamedTuple):
    """Rows of four-bit floats."""

    codes: Tensor
    """uint8 [n, bytes of a row]"""
    scales: Tensor
    """[n, groups]: float8_e4m3fn, or uint8 exponents with a bias of 127."""
    factors: Tensor | None = None
    """float32 [n]: of all scales of a row; None: 1."""


class BlockScaledOps:
    """Products of weights and x in MXFP4; those of float32 x use decoded weights."""

    bits: Final = 4
    x_bits: Final = 4
    has_zeros: Final = False
    group: int = GROUP.value
    has_factors: bool = False

    def empty(self, rows: int, width: int, dtype: torch.dtype, count: int | None = None) -> Tensor:
        """Return memory for a weight [rows, width], or for `count` of them; the dtype is
        ignored.
        """
        del dtype
        factors = torch.float32.itemsize * self.has_factors
        size = rows * (sum(row_bytes(width, self.group)) + factors)
        return torch.empty(size if count is None else (count, size), dtype=torch.uint8)

    def parts(self, weight: Tensor, rows: int, width: int) -> BlockScaled:
        """Return the views of one weight."""
        codes, groups = row_bytes(width, self.group)
        numbers = weight[: rows * codes].view(rows, codes)
        scales = weight[rows * codes : rows * (codes + groups)].view(rows, groups)
        if not self.has_factors:
            return BlockScaled(numbers, scales)
        factors = weight[rows * (codes + groups) :].view(torch.float32)
        return BlockScaled(numbers, scales.view(torch.float8_e4m3fn), factors)

    def pack_codes(
        self,
        weight: Tensor,
        rows: int,
        first: int,
        codes: Tensor,
        scales: Tensor,
        *,
        factors: Tensor | None = None,
    ) -> None:
        """Write doubled floats [n, width] of `FOUR_BIT_FLOATS`, int8, and half their scales [n,
        groups] to rows from `first`.

        Scales are powers of two; or numbers of e4m3, and the factors [n, 1] are halved instead.
        """
        count, width = codes.shape
        check_scales(codes, scales, self.group)
        found = 0 if factors is None else factors.numel()
        if found != count * self.has_factors:
            raise ValueError(
                f"factors: got {found}; expected {count * self.has_factors}. Use one for each row "
                "of NVFP4, and none for MXFP4."
            )
        if weight.is_meta:  # memory plan: no data
            return
        views = self.parts(weight, rows, width)
        own = slice(first, first + count)
        views.codes[own] = packed(codes, views.codes.shape[1]).to(weight.device)
        padded = pad(self._stored(scales.float()), (0, views.scales.shape[1] - scales.shape[1]))
        views.scales[own] = padded.to(views.scales.dtype).to(weight.device)
        if views.factors is not None and factors is not None:
            views.factors[own] = (2 * factors.float()).flatten().to(weight.device)

    def rows(
        self, weight: Tensor, rows: int, width: int, ids: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return the plain rows [n, width] for ids [n]."""
        codes, scales, factors = self.parts(weight, rows, width)
        of_rows = scales.view(torch.uint8)[ids].view(scales.dtype)  # torch selects no e4m3
        chosen = BlockScaled(codes[ids], of_rows, None if factors is None else factors[ids])
        return decoded(chosen, width).to(dtype)

    def linear(self, x: Tensor, weight: Tensor, rows: int, order: Tensor | None = None) -> Tensor:
        """Return x @ weight.T, [..., rows]. `order`: index into x for each column of the weight."""
        x = x if order is None else x[..., order]
        flat = x.reshape(-1, x.shape[-1])
        width = flat.shape[1]
        views = self.parts(weight, rows, width)
        if x.dtype is torch.float32:
            return x @ decoded(views, width).T
        out = x.new_empty(*x.shape[:-1], rows)
        if out.numel():
            _multiply(views, self._rounded(flat), out)
        return out

    def _stored(self, scales: Tensor) -> Tensor:
        """Return what is stored of half the scales."""
        exponents = torch.frexp(scales).exponent  # mantissa 0.5: of the whole scale
        biased: Tensor = exponents + EXPONENT_BIAS.value
        return biased.clamp(0, LARGEST_BYTE.value)

    def _rounded(self, x: Tensor) -> BlockScaled:
        """Return the rows of x in the format of the weights."""
        return round_rows(x)


def _multiply(weight: BlockScaled, x: BlockScaled, out: Tensor) -> None:
    """Write x @ weight.T to out [..., rows]."""
    rows, width = weight.codes.shape
    count = len(x.codes)
    group = 2 * width // weight.scales.shape[1]
    block = min(MAX_ROWS, next_power_of_2(count, MIN_DOT_SIZE))

    def launch(config: LaunchConfig) -> None:
        _block_scaled_product[triton.cdiv(rows, config.columns), triton.cdiv(count, block)](
            *weight, *x, weight.codes.stride(0), weight.scales.stride(0), out, count, rows,
            ROWS=block, COLUMNS=config.columns, INNER=INNER, GROUP=group,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip

    AUTOTUNE.launch(out.device, (row_bucket(count), rows, width, group, str(out.dtype)), launch)


def packed(codes: Tensor, row_bytes: int) -> Tensor:
    """Return doubled floats [n, width] of `FOUR_BIT_FLOATS`, int8, as bytes of two codes."""
    known = torch.tensor(FOUR_BIT_FLOATS, device=codes.device)
    stored = torch.searchsorted(known, codes.abs().long()).to(torch.uint8)
    stored |= (codes < 0).to(torch.uint8) << 3
    pairs = pad(stored, (0, 2 * row_bytes - codes.shape[1])).view(len(codes), -1, 2)
    return pairs[..., 0] | pairs[..., 1] << 4


def decoded(rows: BlockScaled, width: int) -> Tensor:
    """Return the numbers [n, width] in float32."""
    scales = rows.scales.float()
    if rows.scales.dtype is torch.uint8:
        scales = torch.exp2(scales - EXPONENT_BIAS.value)
    if rows.factors is not None:
        scales = scales * rows.factors[:, None]
    return _scaled(rows.codes, scales, width)


def _scaled(codes: Tensor, scales: Tensor, width: int) -> Tensor:
    """Return the numbers [n, width] of bytes of two codes times the scales [n, groups]."""
    positive = torch.tensor(FOUR_BIT_FLOATS, dtype=torch.float32, device=codes.device) / 2
    numbers = torch.cat([positive, -positive])
    nibbles = torch.stack([codes & 15, codes >> 4], -1).flatten(1)
    group = nibbles.shape[1] // scales.shape[1]
    return (numbers[nibbles.int()] * scales.repeat_interleave(group, 1))[:, :width]


def round_rows(x: Tensor) -> BlockScaled:
    """Return the rows of x [n, width] in four bits, with a scale for each group."""
    count, width = x.shape
    codes, groups = row_bytes(width, GROUP.value)
    out = BlockScaled(
        torch.empty((count, codes), dtype=torch.uint8, device=x.device),
        torch.empty((count, groups), dtype=torch.uint8, device=x.device),
    )
    _round_block_scaled[count, triton.cdiv(groups, ROUNDED_GROUPS)](
        x, x.stride(0), x.stride(1), out.codes, out.scales, width, codes, groups,
        GROUP=GROUP.value, GROUPS=ROUNDED_GROUPS, num_warps=4,
    )  # fmt: skip
    return out


def row_bytes(width: int, group: int) -> tuple[int, int]:
    """Return the bytes of a row's codes and of its scales."""
    padded = -(-width // INNER) * INNER
    return padded // 2, padded // group


@triton.jit
def nearest(x):
    """Return the codes of the nearest E2M1 floats, ties to even."""
    size = tl.abs(x)
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
    code += (size >= 1.75).to(tl.int32) + (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
    code += (size > 5.0).to(tl.int32)
    return tl.where(x < 0.0, code | 8, code)


@triton.jit
def _round_block_scaled(
    x, x_row, x_element, codes, exponents, width, row_bytes, groups,
    GROUP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """One program: some groups of a row. A group with a number that is none is none."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    element = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    mine = element < width
    read = tl.load(x + row * x_row + element * x_element, mask=mine, other=0.0).to(tl.float32)
    sizes = tl.abs(read)
    # Numbers that are none have the largest bits of all.
    highest = tl.max(sizes.to(tl.int32, bitcast=True), 1)
    exponent = tl.maximum((highest >> 23) - LARGEST_EXPONENT, 1)
    exponent = tl.where(highest >= 0x7F800000, LARGEST_BYTE + 1, exponent)
    scale = (tl.minimum(exponent, LARGEST_BYTE) << 23).to(tl.float32, bitcast=True)
    found = nearest(tl.where(read == read, read, 0.0) / scale[:, None])
    low, high = tl.split(tl.reshape(found, (GROUPS, GROUP // 2, 2)))
    byte = group[:, None] * (GROUP // 2) + tl.arange(0, GROUP // 2)[None, :]
    to = codes + row * row_bytes + byte
    tl.store(to, (low | (high << 4)).to(tl.uint8), mask=(group < groups)[:, None])
    tl.store(exponents + row * groups + group, exponent.to(tl.uint8), mask=group < groups)


@triton.jit(do_not_specialize=["count"])
def _block_scaled_product(
    codes, scales, factors, x_codes, x_scales, x_factors, row_bytes, groups, out, count, rows,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One program: some rows of the weight by some rows of x.

    The weight is the left operand: its tile has as many rows as the matrix units take. Scales are
    exponents in bytes, or e4m3 with a factor of each row.
    """
    row = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    index = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there = (row < rows)[:, None]
    mine = (index < count)[:, None]
    byte = tl.arange(0, INNER // 2)[None, :]
    group = tl.arange(0, INNER // GROUP)[None, :]
    row_index = row.to(tl.int64)[:, None]
    x_index = index.to(tl.int64)[:, None]
    weight_at = codes + row_index * row_bytes + byte
    x_at = x_codes + x_index * row_bytes + byte
    weight_scale_at = scales + row_index * groups + group
    x_scale_at = x_scales + x_index * groups + group
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    for step in range(row_bytes // (INNER // 2)):
        weight = tl.load(weight_at + step * (INNER // 2), mask=there, other=0)
        read = tl.load(x_at + step * (INNER // 2), mask=mine, other=0)
        of_weight = tl.load(weight_scale_at + step * (INNER // GROUP), mask=there, other=0.0)
        of_x = tl.load(x_scale_at + step * (INNER // GROUP), mask=mine, other=0.0)
        total = tl.dot_scaled(weight, of_weight, "e2m1", tl.trans(read), of_x, "e2m1", total)
    if factors is not None:
        total *= tl.load(factors + row, mask=row < rows, other=0.0)[:, None]
        total *= tl.load(x_factors + index, mask=index < count, other=0.0)[None, :]
    to = out + x_index * rows + row[None, :]
    tl.store(to, tl.trans(total).to(out.dtype.element_ty), mask=mine & (row < rows)[None, :])
