"""Backends for low-bit floats with group scales: stored in eight or four bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from core_kernels.floats import TABLE_SIZE, FloatOps
from core_kernels.library import Library
from core_kernels.quantized import QuantizedOps
from torch import nn

from builtin_plugins.quant_methods.cpu_packed.experts import PackedExperts
from builtin_plugins.quant_methods.cpu_packed.group_sizes import (
    kernel_group_size,
    repeat_scales,
    scale_type,
)
from builtin_plugins.quant_methods.stored.layouts import Layout, LayoutSpec, ScaledFloats
from core.api import ModelError

if TYPE_CHECKING:
    from core.model_spec.quant_method import QuantizedInputs

Ops = FloatOps | QuantizedOps
MakeOps = Callable[[ScaledFloats | None], Ops]
"""Returns the kernels for floats like these; None: any kernels with the same memory layout."""


def ops_for(spec: LayoutSpec, library: Library) -> MakeOps | None:
    """Return a factory of kernels for such floats; None: there are none.

    Six-bit floats are stored in eight.
    """
    group = kernel_group_size(spec.group_size)
    if not spec.is_float or not group or spec.has_zeros or spec.has_g_idx:
        return None

    if spec.has_codebook:
        return lambda floats: FloatOps(
            library,
            torch.uint8,
            group,
            torch.zeros(TABLE_SIZE) if floats is None else floats.codebook,
            scales=torch.int16,
        )
    scales = torch.float8_e8m0fnu if spec.has_e8m0_scales else torch.float32
    of_codes = partial(QuantizedOps, library)
    of_floats = partial(FloatOps, library, scales=scales)
    small: torch.dtype | None = None
    if spec.has_global_scales:
        small = torch.float8_e4m3fn
    elif spec.has_e8m0_scales:
        small = torch.float8_e8m0fnu
    return make_float_ops(spec.bits, group, of_codes, of_floats, small)


def make_float_ops(
    bits: int,
    group: int,
    of_codes: Callable[..., Any],
    of_floats: Callable[[torch.dtype, int], Any],
    small: torch.dtype | None = None,
) -> MakeOps:
    """Return a factory of kernels for floats of `bits`: doubled integers for four bits, else FP8.

    `small`: eight-bit dtype in which integer kernels store scales; None: a 16-bit dtype.
    """

    def make(floats: ScaledFloats | None) -> Ops:
        if bits == 4:
            if floats is None or small:
                wide = torch.float16
            else:
                wide = scale_type(floats.full_scales() / 2)
            return of_codes(4, group, small or wide, is_float=True)  # type: ignore[no-any-return]
        return of_floats(torch.float8_e4m3fn if floats is None else floats.values.dtype, group)  # type: ignore[no-any-return]

    return make


def write_rows(ops: Ops, weight: torch.Tensor, rows: int, first: int, floats: ScaledFloats) -> None:
    """Write rows from `first` on of a weight with `rows` rows."""
    factors = floats.global_scales if getattr(ops, "has_factors", False) else None
    scales = floats.full_scales() if factors is None else floats.scales
    scales = repeat_scales(scales, floats.shape[1], floats.group_size, ops.group)
    if floats.codebook is not None and isinstance(ops, FloatOps):
        if ops.table is None or not torch.equal(floats.codebook, ops.table):
            raise ModelError(
                "has another codebook than the layer's other weights; use --plugins "
                "no:quant_cpu_packed."
            )
        ops.pack_codes(weight, rows, first, floats.values, scales)
    elif ops.bits == 8:
        ops.pack_codes(weight, rows, first, floats.values, scales)
    else:  # doubled FP4 numbers are integers
        codes = _twice(floats.values)
        if factors is not None:
            of_factors: Any = ops
            of_factors.pack_codes(weight, rows, first, codes, scales, factors=factors / 2)
        else:
            ops.pack_codes(weight, rows, first, codes, scales / 2)


def _twice(values: torch.Tensor) -> torch.Tensor:
    """Return eight-bit floats doubled, as integers, by a lookup per byte."""
    table = _doubles(values.dtype)
    return table.index_select(0, values.contiguous().view(torch.uint8).flatten().int()).view(
        values.shape
    )


@cache
def _doubles(dtype: torch.dtype) -> torch.Tensor:
    """Return int8 [256]: the double of each eight-bit float, by byte.

    Cached, as rows are written a few at a time.
    """
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    return torch.where(numbers.isfinite(), 2 * numbers, 0).clamp(-128, 127).to(torch.int8)


class PackedFloats:
    """One weight matrix [out, in]."""

    def __init__(self, make: MakeOps) -> None:
        self._make = make
        self._ops = make(None)
        self._needs_ops = True
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

    def write_rows(self, layer: nn.Module, rows: slice, layout: Layout) -> None:
        """Write rows."""
        if not isinstance(layout, ScaledFloats):
            raise TypeError(f"{type(layout).__name__} is not a layout of this backend")
        if self._needs_ops:
            self._ops = self._make(layout)
            self._needs_ops = False
        write_rows(self._ops, layer.get_parameter("weight").data, self._rows, rows.start, layout)

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T."""
        return self._ops.linear(x, layer.weight, self._rows)  # type: ignore[arg-type]

    def quantized_inputs(self) -> QuantizedInputs | None:
        """Return kernels that write x as these kernels multiply it; None: x is plain."""
        find = getattr(self._ops, "inputs", None)
        return None if find is None else find(self._rows, self._width, self._dtype)

    def rounds_inputs(self) -> bool:
        """Return whether the kernels round x."""
        return getattr(self._ops, "x_bits", 16) < 16 or self.quantized_inputs() is not None

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows with these ids."""
        return self._ops.rows(layer.weight, self._rows, self._width, ids, self._dtype)  # type: ignore[arg-type]


class PackedFloatExperts(PackedExperts):
    """The matrices of all experts."""

    def __init__(self, make: MakeOps) -> None:
        super().__init__(make(None))  # type: ignore[arg-type]
        self._make = make
        self._needs_ops = True

    def write_rows(
        self, layer: nn.Module, rows: slice, layout: Any, matrix: str, expert: int
    ) -> None:
        """Write rows of one expert's matrix."""
        if self._needs_ops:
            self._ops = self._make(layout)  # type: ignore[assignment]
            self._needs_ops = False
        ops: Any = self._ops
        write_rows(
            ops, layer.get_parameter(matrix).data[expert], self._rows[matrix], rows.start, layout
        )
