"""Norms and activations that quantize the rows they compute, in one launch."""

from __future__ import annotations

import torch

from core_kernels.triton import row_ops
from core_kernels.triton.quantized_rows import QuantizedRows, round_rows

Tensor = torch.Tensor


class RowQuantizer:
    """Norms and activations that write rows as products of eight bits read them.

    Results equal those of `row_ops`, then `round_rows`, bit by bit.
    """

    def __init__(self, group: int, kind: torch.dtype = torch.float8_e4m3fn) -> None:
        """`group`: elements per scale; `kind`: dtype of the rows."""
        self._group = group
        self._kind = kind

    def round(self, x: Tensor) -> QuantizedRows:
        """Return the rows of x [n, width]."""
        return round_rows(x, self._group, self._kind)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> QuantizedRows:
        """Return the normalised rows of x [n, width]."""
        out = self._empty(x, x.shape[1])
        row_ops.normed(x, out, weight, None, eps, offset, centred=False)
        return out

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float
    ) -> tuple[QuantizedRows, Tensor]:
        """Return the normalised rows of x + residual, and that sum, not quantized."""
        out = self._empty(x, x.shape[1])
        total = row_ops.sum_normed(x, residual, out, weight, None, eps, offset, centred=False)
        return out, total

    def gated(self, x: Tensor, activation: str) -> QuantizedRows:
        """Return activation(gate) * up for x = [n, gate | up]."""
        width = x.shape[1] // 2
        if self._group > width > row_ops.MAX_GATED_BLOCK:  # a scale needs all of its elements
            return self.round(row_ops.gated(x, activation))
        out = self._empty(x, width)
        row_ops.write_gated(x, activation, out)
        return out

    def _empty(self, x: Tensor, width: int) -> QuantizedRows:
        return QuantizedRows.empty(len(x), width, self._group, self._kind, x)
