"""Floats of few bits with scales for groups, as stored formats unpack to them: kept in as many
bits, eight or four.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from core_kernels.floats import TABLE_SIZE, FloatOps
from core_kernels.library import Library
from core_kernels.quantized import QuantizedOps
from torch import nn

from builtin_plugins.quant_methods.packed.experts import PackedExperts
from builtin_plugins.quant_methods.packed.groups import kept_group, repeated, scale_type
from builtin_plugins.quant_methods.stored.layouts import Grouping, Layout, ScaledFloats
from core.api import ModelError

Ops = FloatOps | QuantizedOps
Make = Callable[[ScaledFloats | None], Ops]
"""Returns the kernels for floats like these; None: any that need as much memory."""


def ops_for(grouping: Grouping, library: Library) -> Make | None:
    """Return what makes the kernels that keep such floats; None: there are none.

    Those of six bits are kept in eight.
    """
    group = kept_group(grouping.group)
    if not grouping.is_float or not group or grouping.has_zeros or grouping.is_ordered:
        return None

    if grouping.has_table:
        return lambda floats: FloatOps(
            library,
            torch.uint8,
            group,
            torch.zeros(TABLE_SIZE) if floats is None else floats.table,
            scales=torch.int16,
        )
    scales = torch.float8_e8m0fnu if grouping.has_powers else torch.float32
    of_codes = partial(QuantizedOps, library)
    of_floats = partial(FloatOps, library, scales=scales)
    small = (
        torch.float8_e4m3fn
        if grouping.has_factors
        else torch.float8_e8m0fnu
        if grouping.has_powers
        else None
    )
    return maker(grouping.bits, group, of_codes, of_floats, small)


def maker(
    bits: int,
    group: int,
    of_codes: Callable[..., Any],
    of_floats: Callable[[torch.dtype, int], Any],
    small: torch.dtype | None = None,
) -> Make:
    """Return what makes the kernels for floats of so many bits: of four, those of codes twice as
    large; else of eight.

    `small`: the type of eight bits in which kernels of codes keep scales; None: they keep one of
    sixteen.
    """

    def make(floats: ScaledFloats | None) -> Ops:
        if bits == 4:
            wide = (
                torch.float16 if floats is None or small else scale_type(floats.all_of_scales() / 2)
            )
            return of_codes(4, group, small or wide, is_float=True)  # type: ignore[no-any-return]
        return of_floats(torch.float8_e4m3fn if floats is None else floats.values.dtype, group)  # type: ignore[no-any-return]

    return make


def place(ops: Ops, weight: torch.Tensor, rows: int, first: int, floats: ScaledFloats) -> None:
    """Fill rows from `first` on of a weight of so many rows."""
    factors = floats.factors if isinstance(ops, QuantizedOps) and ops.has_factors else None
    scales = floats.all_of_scales() if factors is None else floats.scales
    scales = repeated(scales, floats.shape[1], floats.group, ops.group)
    if floats.table is not None and isinstance(ops, FloatOps):
        if ops.table is None or not torch.equal(floats.table, ops.table):
            raise ModelError(
                "has another table of numbers than what it is kept with; use --plugins "
                "no:quant_packed."
            )
        ops.place(weight, rows, first, floats.values, scales)
    elif ops.bits == 8:
        ops.place(weight, rows, first, floats.values, scales)
    else:  # twice as large they are integers
        codes = _twice(floats.values)
        if isinstance(ops, QuantizedOps) and factors is not None:
            ops.place(weight, rows, first, codes, scales, factors=factors / 2)
        else:
            ops.place(weight, rows, first, codes, scales / 2)


def _twice(values: torch.Tensor) -> torch.Tensor:
    """Return numbers of eight bits twice as large, as integers: looked up by their bytes, since to
    convert them takes longer.
    """
    table = _doubles(values.dtype)
    return table.index_select(0, values.contiguous().view(torch.uint8).flatten().int()).view(
        values.shape
    )


@cache
def _doubles(dtype: torch.dtype) -> torch.Tensor:
    """Return int8 [256]: twice each number of a type of eight bits, by its byte.

    Rows are placed few at a time, so it is kept.
    """
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    return torch.where(numbers.isfinite(), 2 * numbers, 0).clamp(-128, 127).to(torch.int8)


class PackedFloats:
    """One weight matrix [out, in]."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._ops = make(None)
        self._is_fresh = True
        self._rows = self._width = 0
        self._dtype = torch.float32

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register `weight`, bytes."""
        self._rows = out_features
        self._width = in_features
        self._dtype = dtype
        empty = self._ops.empty(out_features, in_features, dtype)
        layer.register_parameter("weight", nn.Parameter(empty, requires_grad=False))

    def put(self, layer: nn.Module, rows: slice, layout: Layout) -> None:
        """Fill rows."""
        if not isinstance(layout, ScaledFloats):
            raise TypeError(f"{type(layout).__name__} is not what this keeper was asked for")
        if self._is_fresh:
            self._ops = self._make(layout)
            self._is_fresh = False
        place(self._ops, layer.get_parameter("weight").data, self._rows, rows.start, layout)

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T."""
        return self._ops.linear(x, layer.weight, self._rows)  # type: ignore[arg-type]

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of these numbers."""
        return self._ops.rows(layer.weight, self._rows, self._width, ids, self._dtype)  # type: ignore[arg-type]


class PackedFloatExperts(PackedExperts):
    """The matrices of all experts."""

    def __init__(self, make: Make) -> None:
        super().__init__(make(None))  # type: ignore[arg-type]
        self._make = make
        self._is_fresh = True

    def put(self, layer: nn.Module, rows: slice, layout: Any, matrix: str, expert: int) -> None:
        """Fill rows of one expert's matrix."""
        if self._is_fresh:
            # type: ignore[assignment]
            self._ops = self._make(layout)
            self._is_fresh = False
        ops: Any = self._ops
        place(ops, layer.get_parameter(matrix).data[expert], self._rows[matrix], rows.start, layout)
