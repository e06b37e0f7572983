"""Integers with scales for groups, as stored formats unpack to them: kept as they are, by the kernels of rounded weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from core_kernels.library import Library
from core_kernels.quantized import FILLED, LARGEST_GROUP, QuantizedOps
from torch import nn

from builtin_plugins.quant_methods.packed.experts import PackedExperts
from core.api import ModelError
from core.quantization.layouts import GroupedInts, Grouping, Layout

WHOLE_ROW = 128
"""The group by which rows with one scale are kept: it stands there several times."""


Make = Callable[[torch.dtype], QuantizedOps]
"""Returns kernels for scales of that type."""


def ops_for(grouping: Grouping, library: Library) -> Make | None:
    """Return what makes the kernels that keep such integers; None: there are none.

    Zero points are taken off, which makes integers a bit longer: those of three bits fit into four, longer ones into eight.
    """
    bits = grouping.bits + grouping.has_zeros
    group = kept_group(grouping.group)
    return None if bits > 8 or not group else partial(QuantizedOps, library, 4 if bits <= 4 else 8, group)


def kept_group(group: int) -> int:
    """Return the group that the kernels take for one of a format: it, or a part of it; 0 where there is none."""
    if group <= 0:
        return WHOLE_ROW
    if group <= LARGEST_GROUP:
        return 0 if group % FILLED else group
    return next((size for size in (256, 128, 64, 32, 16, FILLED) if group % size == 0), 0)


class PackedInts:
    """One weight matrix [out, in]."""

    def __init__(self, make: Make) -> None:
        self._make, self._ops, self._is_fresh = make, make(torch.float16), True
        self._rows = self._width = 0
        self._dtype = torch.float32
        self._order: torch.Tensor | None = None

    def create(self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        """Register `weight`, bytes."""
        self._rows, self._width, self._dtype = out_features, in_features, dtype
        empty = self._ops.empty(out_features, in_features, dtype)
        layer.register_parameter("weight", nn.Parameter(empty, requires_grad=False))

    def put(self, layer: nn.Module, rows: slice, layout: Layout) -> None:
        """Fill rows; columns that have an order are sorted by their groups, and x will be."""
        if not isinstance(layout, GroupedInts):
            raise TypeError(f"{type(layout).__name__} is not what this keeper was asked for")
        self._order = None if layout.order is None else layout.order.argsort(stable=True)
        if self._is_fresh:
            self._ops, self._is_fresh = self._make(scale_type(layout.scales)), False
        codes, scales = kept(layout, self._order, self._ops)
        self._ops.place(layer.get_parameter("weight").data, self._rows, rows.start, codes, scales)

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T."""
        if self._order is not None:
            x = x[..., self._order]
        return self._ops.linear(x, layer.weight, self._rows)  # type: ignore[arg-type]

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of these numbers."""
        rows = self._ops.rows(layer.weight, self._rows, self._width, ids, self._dtype)  # type: ignore[arg-type]
        return rows if self._order is None else rows[:, self._order.argsort()]


class PackedIntExperts(PackedExperts):
    """The matrices of all experts."""

    def __init__(self, make: Make) -> None:
        super().__init__(make(torch.float16))  # type: ignore[arg-type]
        self._make, self._is_fresh = make, True

    def put(self, layer: nn.Module, rows: slice, layout: Any, matrix: str, expert: int) -> None:
        """Fill rows of one expert's matrix."""
        if self._is_fresh:
            self._ops, self._is_fresh = self._make(scale_type(layout.scales)), False  # type: ignore[assignment]
        ops: Any = self._ops
        ops.place(layer.get_parameter(matrix).data[expert], self._rows[matrix], rows.start, *kept(layout, None, ops))


def scale_type(scales: torch.Tensor) -> torch.dtype:
    """Return the type of two bytes that is nearest to these scales, where they are the first of a layer."""
    exact = scales.float()

    def worst(dtype: torch.dtype) -> float:
        off = (scales.to(dtype).float() - exact).abs() / exact.abs().clamp(min=1e-30)
        return float(off.max()) if off.numel() else 0.0

    return torch.float16 if worst(torch.float16) <= worst(torch.bfloat16) else torch.bfloat16


def kept(layout: GroupedInts, order: torch.Tensor | None, ops: QuantizedOps) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 codes without zero points and the scales of the kernels' groups, columns sorted by `order`."""
    codes, scales, zeros = layout.codes, layout.scales, layout.zeros
    rows, width = codes.shape
    groups = scales.shape[1]
    if order is not None:
        if len(set(torch.bincount(layout.order, minlength=groups).tolist())) > 1:  # type: ignore[arg-type]
            raise ModelError(
                "has groups of unequal numbers of columns, which the kernels do not keep; use --plugins no:quant_packed."
            )
        codes = codes[:, order]
    if zeros is not None:
        off = codes.view(rows, groups, -1).short() - zeros.unsqueeze(-1)
        least, most = (-8, 7) if ops.bits == 4 else (-128, 127)
        if off.numel() and not least <= int(off.min()) <= int(off.max()) <= most:
            raise ModelError(
                f"has integers of {int(off.min())} to {int(off.max())} from zero; {least} to {most} can be."
            )
        codes = off.to(torch.int8).view(rows, width)
    own = -(-width // ops.group)
    return codes, scales if own == groups else scales.repeat_interleave(-(-own // groups), 1)[:, :own]
