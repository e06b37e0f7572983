"""GEMM with quantized weights: integers of eight or four bits, floats of eight or four.

A weight [rows, width] is bytes: codes row by row, then scales [groups, rows], then zero points of
the same shape. Four-bit codes of `2 * TILE` consecutive columns share `TILE` bytes, the first half
in the low nibbles. Codes are exact in a product. If a column tile lies within one group, its sum is
scaled; otherwise each element is.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch.nn.functional import pad

from core_kernels.triton.autotune import Autotuner, LaunchConfig, row_bucket
from core_kernels.triton.launching import (
    MIN_DOT_SIZE,
    find_segment,
    next_power_of_2,
    product,
    uses_float32,
)
from core_kernels.triton.registers import register_options
from core_kernels.triton.routing import route

Tensor = torch.Tensor

TILE: Final = 64
"""Columns per accumulation step."""
MAX_ROWS: Final = 64
"""Maximum rows of x per program."""
WHOLE_ROW: Final = 1 << 30
"""Group size for one scale per row."""
ALIGNED: Final = 16
"""Byte alignment of code rows and of scales."""
FOUR_BIT_FLOATS: Final = (0, 1, 2, 3, 4, 6, 8, 12)
"""Magnitudes of four-bit floats (E2M1), doubled; each has both signs."""
INT8: Final = tl.constexpr(0)
INT4: Final = tl.constexpr(1)
E4M3: Final = tl.constexpr(2)
E5M2: Final = tl.constexpr(3)
E2M1: Final = tl.constexpr(4)
EIGHT_BIT_FLOATS: Final = {torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2}
AUTOTUNE: Final = Autotuner("product")


class WeightViews(NamedTuple):
    """The parts of a weight's memory, as views."""

    codes: Tensor
    """[rows, bytes of a row]"""
    scales: Tensor
    """[groups, rows]"""
    zeros: Tensor | None
    """int16 [groups, rows]"""


class GroupedOps:
    """GEMM with weights that have a scale per group of inputs. Bitwise batch-invariant.

    Same interface as the C++ library's ops.
    """

    def __init__(
        self, kind: int, bits: int, group: int, scales: torch.dtype, *, has_zeros: bool = False
    ) -> None:
        self.bits: Final = bits
        self.group: Final = group
        self.scales: Final = scales
        self.has_zeros: Final = has_zeros
        self._kind: Final = kind
        self._name: Final = f"{tl.constexpr(kind).value}, {group}, {scales}, {has_zeros}"

    def empty(self, rows: int, width: int, dtype: torch.dtype, count: int | None = None) -> Tensor:
        """Return memory for a weight [rows, width], or for `count` of them; the dtype is
        ignored.
        """
        del dtype
        codes, scales, zeros = self._sizes(rows, width)
        size = codes + scales + zeros
        return torch.empty(size if count is None else (count, size), dtype=torch.uint8)

    def linear(self, x: Tensor, weight: Tensor, rows: int, order: Tensor | None = None) -> Tensor:
        """Return x @ weight.T, [..., rows]. `order`: index into x for each column of the weight."""
        x = x if order is None else x[..., order]
        flat = _flat(x)
        out = x.new_empty(*x.shape[:-1], rows)
        if out.numel():
            block = _rows_at_once(len(flat))
            self._launch(
                triton.cdiv(len(flat), block), block, flat, weight, rows, out, None, None, 1
            )
        return out

    def grouped(self, x: Tensor, weights: Tensor, rows: int, choices: Tensor) -> Tensor:
        """Return the product of each row of x with one of `weights`, [n, rows].

        `choices` int64 holds the weight of each row in any order; rows of x are sorted by weight.
        """
        out = x.new_empty(len(x), rows)
        if out.numel():
            count = len(weights)
            block = _rows_at_once(len(x) // count)
            _, starts, blocks = route(choices.flatten(), count, block)
            programs = triton.cdiv(len(x), block) + min(count, len(x))
            self._launch(programs, block, _flat(x), weights, rows, out, starts, blocks, count)
        return out

    def rows(
        self, weight: Tensor, rows: int, width: int, ids: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return the plain rows [n, width] for ids [n]."""
        out = torch.empty(len(ids), width, dtype=dtype, device=weight.device)
        if out.numel():
            views = self.parts(weight, rows, width)
            _rows[len(ids), triton.cdiv(width, self._step)](
                ids, *views, views.codes.stride(0), out, rows, width, **self._facts, num_warps=1
            )
        return out

    def parts(self, weight: Tensor, rows: int, width: int) -> WeightViews:
        """Return the views of one weight."""
        codes, scales, zeros = self._sizes(rows, width)
        groups = self.groups(width)
        size = groups * rows
        return WeightViews(
            weight[:codes].view(rows, -1),
            weight[codes : codes + size * self.scales.itemsize]
            .view(self.scales)
            .view(groups, rows),
            weight[codes + scales : codes + scales + 2 * size].view(torch.int16).view(groups, rows)
            if zeros
            else None,
        )

    def groups(self, width: int) -> int:
        """Return the number of scales per row."""
        return -(-width // self.group)

    def _write(
        self,
        weight: Tensor,
        rows: int,
        first: int,
        codes: Tensor,
        scales: Tensor,
        zeros: Tensor | None = None,
    ) -> None:
        """Write codes [n, width], one per byte, and their scales [n, groups] to rows from
        `first`.
        """
        count, width = codes.shape
        check_scales(codes, scales, self.group)
        found = "none" if zeros is None else list(zeros.shape)
        expected = list(scales.shape) if self.has_zeros else "none"
        if found != expected:
            raise ValueError(
                f"zeros: got {found}; expected {expected}. Use one for each scale of a weight with "
                "zero points."
            )
        if weight.is_meta:  # memory plan: no data
            return
        views = self.parts(weight, rows, width)
        own = slice(first, first + count)
        codes = pad(codes, (0, self._row_bytes(width) * 8 // self.bits - width))
        if self.bits == 4:
            halves = codes.view(count, -1, 2, TILE)
            codes = (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1)
        views.codes[own] = codes.to(weight.device)
        views.scales[:, own] = scales.T.to(weight.device, self.scales)
        if views.zeros is not None and zeros is not None:
            views.zeros[:, own] = zeros.T.to(weight.device, torch.int16)

    @property
    def _step(self) -> int:
        """Columns per program step."""
        return TILE * 8 // self.bits

    def _row_bytes(self, width: int) -> int:
        per = TILE if self.bits == 4 else ALIGNED
        return -(-width * self.bits // (8 * per)) * per

    def _sizes(self, rows: int, width: int) -> tuple[int, int, int]:
        """Return the bytes of codes, scales and zero points."""
        numbers = self.groups(width) * rows
        sizes = (
            rows * self._row_bytes(width),
            numbers * self.scales.itemsize,
            2 * numbers * self.has_zeros,
        )
        codes, scales, zeros = (-(-size // ALIGNED) * ALIGNED for size in sizes)
        return codes, scales, zeros

    @property
    def _facts(self) -> dict[str, Any]:
        return {"GROUP": self.group, "KIND": self._kind, "TILE": TILE, "STEP": self._step}

    def _launch(
        self,
        programs: int,
        block: int,
        x: Tensor,
        weights: Tensor,
        rows: int,
        out: Tensor,
        starts: Tensor | None,
        blocks: Tensor | None,
        count: int,
    ) -> None:
        width = x.shape[1]
        views = self.parts(weights if starts is None else weights[0], rows, width)

        def launch(config: LaunchConfig) -> None:
            has_few_rows = block == MIN_DOT_SIZE
            limit = register_options("_product", config.warps) if has_few_rows else {}
            _product[programs, triton.cdiv(rows, config.columns)](
                x, x.stride(0), *views, views.codes.stride(0), weights.shape[-1], out, starts,
                blocks, len(x), count, rows, width,
                ROWS=block, COLUMNS=config.columns, WIDE=uses_float32(x), **self._facts,
                num_warps=config.warps, num_stages=config.stages, **limit,
            )  # fmt: skip

        shape = (row_bucket(len(x) // count), count, rows, width, str(x.dtype), self._name)
        AUTOTUNE.launch(x.device, shape, launch)


class QuantizedOps(GroupedOps):
    """Integers of eight or four bits, or four-bit floats; a number is (code - zero) * scale.

    `group` is the number of inputs that share a scale; `scales` is their dtype, bfloat16 or
    float16. `is_float`: codes are doubled four-bit floats.
    """

    def __init__(
        self,
        bits: int,
        group: int,
        scales: torch.dtype = torch.bfloat16,
        *,
        has_zeros: bool = False,
        is_float: bool = False,
    ) -> None:
        kind = E2M1 if is_float else INT4 if bits == 4 else INT8
        super().__init__(kind, bits, group, scales, has_zeros=has_zeros)

    def pack_codes(
        self,
        weight: Tensor,
        rows: int,
        first: int,
        codes: Tensor,
        scales: Tensor,
        zeros: Tensor | None = None,
    ) -> None:
        """Write int8 codes [n, width], scales and int16 zero points [n, groups] to rows from
        `first`.

        Four-bit codes are -8 to 7, or doubled floats of `FOUR_BIT_FLOATS`.
        """
        if self._kind == E2M1:
            known = torch.tensor(FOUR_BIT_FLOATS, device=codes.device)
            stored = (
                torch.searchsorted(known, codes.abs().long()).to(torch.uint8)
                | (codes < 0).to(torch.uint8) << 3
            )
        else:
            stored = (codes + 8 if self.bits == 4 else codes).view(torch.uint8)
        self._write(weight, rows, first, stored, scales, zeros)

    def pack(self, weight: Tensor, rows: int, first: int, tensor: Tensor) -> None:
        """Round a plain [n, width] into rows from `first`; the error is up to half a step.

        With four bits the number of largest magnitude becomes -8: there is one more negative code
        than positive codes.
        """
        count, width = tensor.shape
        group = min(self.group, width)
        groups = self.groups(width)
        limit = 1 << (self.bits - 1)
        if weight.is_meta:
            return
        numbers = pad(tensor.float(), (0, groups * group - width)).view(count, groups, group)
        low = numbers.amin(-1, keepdim=True)
        high = numbers.amax(-1, keepdim=True)
        furthest = torch.where(-low > high, low, high)
        scales = (furthest / -limit if self.bits == 4 else furthest.abs() / (limit - 1)).to(
            self.scales
        )
        codes = (numbers / torch.where(scales == 0, 1, scales).float()).round()
        codes = codes.clamp(-limit if self.bits == 4 else 1 - limit, limit - 1).to(torch.int8)
        self.pack_codes(weight, rows, first, codes.flatten(1)[:, :width], scales[..., 0])


class FloatOps(GroupedOps):
    """Eight-bit floats with float32 scales."""

    def __init__(self, kind: torch.dtype, group: int) -> None:
        super().__init__(EIGHT_BIT_FLOATS[kind], 8, group, torch.float32)
        self.kind: Final = kind

    def pack_codes(
        self, weight: Tensor, rows: int, first: int, values: Tensor, scales: Tensor
    ) -> None:
        """Write floats [n, width] of this kind and scales [n, groups] to rows from `first`."""
        if values.dtype != self.kind:
            raise ValueError(f"{values.dtype} in a weight of {self.kind}")
        self._write(weight, rows, first, values.view(torch.uint8), scales)


def check_scales(codes: Tensor, scales: Tensor, group: int) -> None:
    """Raise ValueError unless each `group` columns of codes [n, width] have a scale."""
    count, width = codes.shape
    expected = [count, -(-width // group)]
    if list(scales.shape) != expected:
        raise ValueError(
            f"scales: got {list(scales.shape)}; expected {expected} for codes "
            f"{list(codes.shape)}. Use one scale for each {group} columns."
        )


def _flat(x: Tensor) -> Tensor:
    """Return x as contiguous rows."""
    flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 or flat.shape[1] < 2 else flat.contiguous()


def _rows_at_once(count: int) -> int:
    return min(MAX_ROWS, next_power_of_2(count, MIN_DOT_SIZE))


@triton.jit
def _numbers(raw, HIGH: tl.constexpr, KIND: tl.constexpr):
    """Decode bytes, or one nibble of each, to float32; floats via float16, which every device
    has.
    """
    if KIND == INT8:
        return raw.to(tl.int8, bitcast=True).to(tl.float32)
    elif KIND == E5M2:
        return (raw.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
    elif KIND == E4M3:
        bits = ((raw & 0x80).to(tl.uint16) << 8) | ((raw & 0x7F).to(tl.uint16) << 7)
        found = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        return tl.where((raw & 0x7F) == 0x7F, float("nan"), found)
    else:
        half = raw & 15
        if HIGH:
            half = raw >> 4
        if KIND == INT4:
            return half.to(tl.float32) - 8.0
        else:
            bits = ((half & 8).to(tl.uint16) << 12) | ((half & 7).to(tl.uint16) << 9)
            return bits.to(tl.float16, bitcast=True).to(tl.float32) * 32768.0


@triton.jit
def _scaled(numbers, scales, zeros, row, element, rows, known, GROUP: tl.constexpr):
    """Return numbers [rows, elements] with their zero points and scales applied."""
    scale_index = (element // GROUP)[None, :] * rows + row[:, None]
    if zeros is not None:
        numbers -= tl.load(zeros + scale_index, mask=known, other=0).to(tl.float32)
    return numbers * tl.load(scales + scale_index, mask=known, other=0.0).to(tl.float32)


@triton.jit
def _add(
    total, x, mine, raw, scales, zeros, row, at, rows, width,
    HIGH: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr, TILE: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Return the total plus the products of `TILE` columns."""
    element = at + tl.arange(0, TILE)
    inside = element < width
    read = tl.load(x + element[None, :], mask=mine[:, None] & inside[None, :], other=0.0)
    numbers = _numbers(raw, HIGH, KIND)
    known = (row < rows)[:, None] & inside[None, :]
    if GROUP % TILE == 0:
        scale_index = at // GROUP * rows + row
        if zeros is not None:
            numbers -= tl.load(zeros + scale_index, mask=row < rows, other=0).to(tl.float32)[
                :, None
            ]
        numbers = tl.where(known, numbers, 0.0).to(read.dtype)
        found = product(read, tl.trans(numbers), tl.zeros(total.shape, tl.float32), WIDE)
        return (
            total
            + found
            * tl.load(scales + scale_index, mask=row < rows, other=0.0).to(tl.float32)[None, :]
        )
    else:
        numbers = _scaled(numbers, scales, zeros, row, element, rows, known, GROUP)
        numbers = tl.where(known, numbers, 0.0).to(read.dtype)
        return product(read, tl.trans(numbers), total, WIDE)


@triton.jit(do_not_specialize=["num_rows", "count"])
def _product(
    x, x_row, codes, scales, zeros, code_row, weight_bytes, out, starts, blocks, num_rows, count,
    rows, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One program: some rows of x that use one weight, for some output rows."""
    first = tl.program_id(0) * ROWS
    end = num_rows
    if starts is not None:
        weight = find_segment(blocks, count, tl.program_id(0))
        first = tl.load(starts + weight) + (tl.program_id(0) - tl.load(blocks + weight)) * ROWS
        end = tl.load(starts + weight + 1)
        skipped = weight.to(tl.int64) * weight_bytes
        codes += skipped
        scales += skipped // (scales.dtype.element_ty.primitive_bitwidth // 8)
        if zeros is not None:
            zeros += skipped // 2
    if first < end:
        row_index = first + tl.arange(0, ROWS)
        mine = row_index < end
        row = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        x_rows = x + row_index.to(tl.int64)[:, None] * x_row
        stored = codes + row.to(tl.int64)[:, None] * code_row + tl.arange(0, TILE)[None, :]
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for at in range(0, width, STEP):
            byte = at * TILE // STEP + tl.arange(0, TILE)
            there = (row < rows)[:, None] & (byte < code_row)[None, :]
            raw = tl.load(stored + at * TILE // STEP, mask=there, other=0)
            total = _add(
                total, x_rows, mine, raw, scales, zeros, row, at, rows, width, False, GROUP, KIND,
                TILE, WIDE
            )  # fmt: skip
            if STEP > TILE:
                total = _add(
                    total, x_rows, mine, raw, scales, zeros, row, at + TILE, rows, width, True,
                    GROUP, KIND, TILE, WIDE
                )  # fmt: skip
        to = out + row_index.to(tl.int64)[:, None] * rows + row[None, :]
        tl.store(to, total.to(out.dtype.element_ty), mask=mine[:, None] & (row < rows)[None, :])


@triton.jit
def _rows(
    ids, codes, scales, zeros, code_row, out, rows, width,
    GROUP: tl.constexpr, KIND: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """One program: some consecutive elements of a row."""
    row = tl.load(ids + tl.program_id(0) + tl.arange(0, 1))
    at = tl.program_id(1) * STEP
    byte = tl.program_id(1) * TILE + tl.arange(0, TILE)
    raw = tl.load(
        codes + row[:, None] * code_row + byte[None, :], mask=(byte < code_row)[None, :], other=0
    )
    for half in tl.static_range(STEP // TILE):
        element = at + half * TILE + tl.arange(0, TILE)
        known = (element < width)[None, :]
        found = _scaled(
            _numbers(raw, half == 1, KIND), scales, zeros, row, element, rows, known, GROUP
        )
        to = out + tl.program_id(0).to(tl.int64) * width + element[None, :]
        tl.store(to, found.to(out.dtype.element_ty), mask=known)
