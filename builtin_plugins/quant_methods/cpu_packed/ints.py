"""Backends for integers with group scales, multiplied by the rounding kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from core_kernels.library import Library
from core_kernels.quantized import QuantizedOps
from torch import nn

from builtin_plugins.quant_methods.cpu_packed.experts import PackedExperts
from builtin_plugins.quant_methods.cpu_packed.group_sizes import (
    kernel_group_size,
    repeat_scales,
    scale_type,
)
from builtin_plugins.quant_methods.stored.layouts import GroupedInts, Layout, LayoutSpec
from core.api import ModelError

if TYPE_CHECKING:
    from core.model_spec.quant_method import QuantizedInputs

MakeOps = Callable[[torch.dtype], QuantizedOps]
"""Returns kernels for scales of that dtype."""


def ops_for(spec: LayoutSpec, library: Library) -> MakeOps | None:
    """Return a factory of kernels for such integers; None: there are none."""
    group = kernel_group_size(spec.group_size)
    if spec.is_float or not group:
        return None
    bits = 4 if spec.bits <= 4 else 8
    x_bits = 8 if spec.activation_bits <= 8 == bits else 16
    zeros = torch.float16 if spec.has_float_zeros else torch.int16
    return partial(
        QuantizedOps,
        library,
        bits,
        group,
        zeros=zeros if spec.has_zeros else None,
        x_bits=x_bits,
    )


class PackedInts:
    """One weight matrix [out, in]."""

    def __init__(self, make: MakeOps) -> None:
        self._make = make
        self._ops = make(torch.float16)
        self._needs_ops = True
        self._rows = self._width = 0
        self._dtype = torch.float32
        self._order: torch.Tensor | None = None

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
        """Write rows. Columns with a g_idx are sorted by group, and x is permuted with them."""
        if not isinstance(layout, GroupedInts):
            raise TypeError(f"{type(layout).__name__} is not a layout of this backend")
        weight = layer.get_parameter("weight").data
        order = None if layout.g_idx is None else layout.g_idx.argsort(stable=True).int()
        if order is not None:
            own = order.to(weight.device)
            # CUDA graphs hold its address
            self._order = own if self._order is None else self._order.copy_(own)
        if self._needs_ops:
            self._ops = self._make(scale_type(layout.scales))
            self._needs_ops = False
        self._ops.pack_codes(
            weight, self._rows, rows.start, *kernel_tensors(layout, order, self._ops)
        )

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T."""
        return self._ops.linear(x, layer.weight, self._rows, self._order)  # type: ignore[arg-type]

    def quantized_inputs(self) -> QuantizedInputs | None:
        """Return kernels that write x as these kernels multiply it; None: x is plain."""
        find = getattr(self._ops, "inputs", None)
        return None if find is None else find(self._rows, self._width, self._dtype)

    def rounds_inputs(self) -> bool:
        """Return whether the kernels round x to eight bits per row; float32 rows are not."""
        own = getattr(self._ops, "x_bits", 16) == 8 and self._dtype != torch.float32
        return own or self.quantized_inputs() is not None

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows with these ids."""
        rows = self._ops.rows(layer.weight, self._rows, self._width, ids, self._dtype)  # type: ignore[arg-type]
        return rows if self._order is None else rows[:, self._order.argsort()]


class PackedIntExperts(PackedExperts):
    """The matrices of all experts."""

    def __init__(self, make: MakeOps) -> None:
        super().__init__(make(torch.float16))  # type: ignore[arg-type]
        self._make = make
        self._needs_ops = True
        self._dtype = torch.float32

    def create(
        self, layer: nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype
    ) -> None:
        """Register both packed tensors."""
        self._dtype = dtype
        super().create(layer, num_experts, width, hidden, dtype)

    def rounds_inputs(self) -> bool:
        """Return whether the kernels round x to eight bits per row; float32 rows are not."""
        return getattr(self._ops, "x_bits", 16) == 8 and self._dtype != torch.float32

    def write_rows(
        self, layer: nn.Module, rows: slice, layout: Any, matrix: str, expert: int
    ) -> None:
        """Write rows of one expert's matrix."""
        if self._needs_ops:
            self._ops = self._make(scale_type(layout.scales))  # type: ignore[assignment]
            self._needs_ops = False
        ops: Any = self._ops
        ops.pack_codes(
            layer.get_parameter(matrix).data[expert],
            self._rows[matrix],
            rows.start,
            *kernel_tensors(layout, None, ops),
        )


def kernel_tensors(
    layout: GroupedInts, order: torch.Tensor | None, ops: QuantizedOps
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return int8 codes, and scales and zero points of kernel groups, columns sorted by `order`."""
    codes = layout.codes
    scales = layout.scales
    zeros = layout.zeros
    if order is not None:
        if len(set(torch.bincount(layout.g_idx, minlength=scales.shape[1]).tolist())) > 1:  # type: ignore[arg-type]
            raise ModelError(
                "has groups of unequal size, which the kernels do not support. Use --plugins "
                "no:quant_cpu_packed, or no:quant_triton on a GPU."
            )
        codes = codes[:, order]
    if ops.has_zeros and zeros is None:
        zeros = torch.zeros_like(scales, dtype=torch.int16)
    width = codes.shape[1]
    of = -(-width // max(scales.shape[1], 1))
    off = None if zeros is None else repeat_scales(zeros, width, of, ops.group)
    return codes, repeat_scales(scales, width, of, ops.group), off
