"""Row operations of the library (norms, activations, rotary embedding).

Each returns None for unsupported inputs. Supported are CPU tensors of float32, bfloat16 and float16
with a contiguous last dimension and constant row strides; weights have the same dtype.
"""

from __future__ import annotations

import ctypes
from typing import Final

import torch

Tensor = torch.Tensor

DTYPES: Final = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
SILU: Final = 0
GELU_TANH: Final = 1


class RowOps:
    """Row operations of a loaded library. Thread-safe."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.isa: Final[str] = library.core_kernels_isa().decode()
        self._rms_norm: Final = library.core_rms_norm
        self._add_rms_norm: Final = library.core_add_rms_norm
        self._gated: Final = library.core_gated
        self._rotary: Final = library.core_rotary
        self._widen: Final = library.core_widen

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor | None:
        """Return x / rms(x) * (weight + offset) as a new contiguous tensor; x has one to three
        dimensions.
        """
        dtype = DTYPES.get(x.dtype)
        shape = x.shape
        strides = x.stride()
        if dtype is None or len(shape) > 3 or strides[-1] != 1 or not _is_weight(weight, x):
            return None
        outer, inner = (1, 1, *shape[:-1])[-2:]
        outer_stride, inner_stride = (0, 0, *strides[:-1])[-2:]
        out = x.new_empty(*shape)
        self._rms_norm(
            out.data_ptr(), x.data_ptr(), weight.data_ptr(),
            outer, inner, shape[-1], outer_stride, inner_stride, eps, offset, dtype,
        )  # fmt: skip
        return out

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float
    ) -> tuple[Tensor, Tensor] | None:
        """Return (rms_norm(x + residual), x + residual) in the memory of x and residual [n,
        width].
        """
        dtype = DTYPES.get(x.dtype)
        if (
            dtype is None
            or x.dim() != 2
            or x.shape != residual.shape
            or residual.dtype is not x.dtype
            or x.stride(1) != 1
            or residual.stride(1) != 1
            or not _is_weight(weight, x)
        ):
            return None
        rows, width = x.shape
        self._add_rms_norm(
            x.data_ptr(), residual.data_ptr(), weight.data_ptr(),
            rows, width, x.stride(0), residual.stride(0), eps, offset, dtype,
        )  # fmt: skip
        return x, residual

    def gated(self, x: Tensor, activation: int) -> Tensor | None:
        """Return activation(gate) * up for a contiguous x = [n, gate | up] as a new tensor [n,
        half].
        """
        dtype = DTYPES.get(x.dtype)
        if dtype is None or x.dim() != 2 or not x.is_contiguous() or not x.is_cpu:
            return None
        rows, width = x.shape
        if width % 2:
            return None
        width //= 2
        out = x.new_empty(rows, width)
        self._gated(out.data_ptr(), x.data_ptr(), rows, width, 2 * width, activation, dtype)
        return out

    def rotary(
        self, query: Tensor, key: Tensor, cos_sin: Tensor, positions: Tensor, interleaved: bool
    ) -> tuple[Tensor, Tensor] | None:
        """Apply the rotary embedding to query and key in place and return them."""
        if (
            query.dtype not in DTYPES
            or key.dtype not in DTYPES
            or query.stride(-1) != 1
            or key.stride(-1) != 1
            or cos_sin.dtype is not torch.float32
            or not cos_sin.is_contiguous()
            or positions.dtype is not torch.int64
            or not positions.is_contiguous()
            or not query.is_cpu
        ):
            return None
        angles = cos_sin.data_ptr()
        position_ids = positions.data_ptr()
        rotary_size = cos_sin.shape[1]
        for x in (query, key):
            tokens, heads, size = x.shape
            self._rotary(
                x.data_ptr(), angles, position_ids,
                tokens, heads, size, x.stride(0), x.stride(1), rotary_size, interleaved,
                DTYPES[x.dtype],
            )  # fmt: skip
        return query, key

    def widen(self, x: Tensor) -> Tensor | None:
        """Return x [n, width] as float32, a new contiguous tensor."""
        dtype = DTYPES.get(x.dtype)
        if dtype is None or x.dim() != 2 or x.stride(1) != 1 or not x.is_cpu:
            return None
        out = x.new_empty(*x.shape, dtype=torch.float32)
        self._widen(out.data_ptr(), x.data_ptr(), *x.shape, x.stride(0), dtype)
        return out


def _is_weight(weight: Tensor, x: Tensor) -> bool:
    return (
        weight.dtype is x.dtype
        and weight.is_contiguous()
        and weight.shape[0] == x.shape[-1]
        and x.is_cpu
    )
