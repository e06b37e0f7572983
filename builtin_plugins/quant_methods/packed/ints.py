"""Integers with scales for groups, as stored formats unpack to them: kept as they are, by the
kernels of rounded weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from core_kernels.library import Library
from core_kernels.quantized import QuantizedOps
from torch import nn

from builtin_plugins.quant_methods.packed.experts import PackedExperts
from builtin_plugins.quant_methods.packed.groups import kept_group, repeated, scale_type
from builtin_plugins.quant_methods.stored.layouts import GroupedInts, Grouping, Layout
from core.api import ModelError

Make = Callable[[torch.dtype], QuantizedOps]
"""Returns kernels for scales of that type."""


def ops_for(grouping: Grouping, library: Library) -> Make | None:
    """Return what makes the kernels that keep such integers; None: there are none."""
    group = kept_group(grouping.group)
    if grouping.is_float or not group:
        return None
    bits = 4 if grouping.bits <= 4 else 8
    x_bits = 8 if grouping.x_bits <= 8 == bits else 16
    zeros = torch.float16 if grouping.has_float_zeros else torch.int16
    return partial(
        QuantizedOps,
        library,
        bits,
        group,
        zeros=zeros if grouping.has_zeros else None,
        x_bits=x_bits,
    )


class PackedInts:
    """One weight matrix [out, in]."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._ops = make(torch.float16)
        self._is_fresh = True
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

    def put(self, layer: nn.Module, rows: slice, layout: Layout) -> None:
        """Fill rows; columns that have an order are sorted by their groups, and x is read so."""
        if not isinstance(layout, GroupedInts):
            raise TypeError(f"{type(layout).__name__} is not what this keeper was asked for")
        weight = layer.get_parameter("weight").data
        order = None if layout.order is None else layout.order.argsort(stable=True).int()
        if order is not None:
            own = order.to(weight.device)
            self._order = (
                own if self._order is None else self._order.copy_(own)
            )  # recorded steps know where it is
        if self._is_fresh:
            self._ops = self._make(scale_type(layout.scales))
            self._is_fresh = False
        self._ops.place(weight, self._rows, rows.start, *kept(layout, order, self._ops))

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T."""
        return self._ops.linear(x, layer.weight, self._rows, self._order)  # type: ignore[arg-type]

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of these numbers."""
        rows = self._ops.rows(layer.weight, self._rows, self._width, ids, self._dtype)  # type: ignore[arg-type]
        return rows if self._order is None else rows[:, self._order.argsort()]


class PackedIntExperts(PackedExperts):
    """The matrices of all experts."""

    def __init__(self, make: Make) -> None:
        super().__init__(make(torch.float16))  # type: ignore[arg-type]
        self._make = make
        self._is_fresh = True

    def put(self, layer: nn.Module, rows: slice, layout: Any, matrix: str, expert: int) -> None:
        """Fill rows of one expert's matrix."""
        if self._is_fresh:
            # type: ignore[assignment]
            self._ops = self._make(scale_type(layout.scales))
            self._is_fresh = False
        ops: Any = self._ops
        ops.place(
            layer.get_parameter(matrix).data[expert],
            self._rows[matrix],
            rows.start,
            *kept(layout, None, ops),
        )


def kept(
    layout: GroupedInts, order: torch.Tensor | None, ops: QuantizedOps
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return int8 codes, and the scales and zero points of the kernels' groups, columns sorted by
    `order`.
    """
    codes = layout.codes
    scales = layout.scales
    zeros = layout.zeros
    if order is not None:
        if len(set(torch.bincount(layout.order, minlength=scales.shape[1]).tolist())) > 1:  # type: ignore[arg-type]
            raise ModelError(
                "has groups of unequal numbers of columns, which the kernels do not keep; use "
                "--plugins no:quant_packed, or on a "
                "GPU no:quant_triton."
            )
        codes = codes[:, order]
    if ops.has_zeros and zeros is None:
        zeros = torch.zeros_like(scales, dtype=torch.int16)
    width = codes.shape[1]
    of = -(-width // max(scales.shape[1], 1))
    off = None if zeros is None else repeated(zeros, width, of, ops.group)
    return codes, repeated(scales, width, of, ops.group), off
