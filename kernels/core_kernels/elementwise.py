"""Elementwise operations, layer norm and row gathering on the CPU.

Each returns None for unsupported inputs.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import torch

from core_kernels.row_ops import DTYPES

Tensor = torch.Tensor

ADD, MULTIPLY, RELU, SQUARE, GELU, GELU_TANH, SILU, SIGMOID = range(8)


class ElementOps:
    """Elementwise operations of a loaded library. Thread-safe."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._elementwise: Final = library.core_elementwise
        self._layer_norm: Final = library.core_layer_norm
        self._take: Final = library.core_take_rows

    def unary(self, x: Tensor, kind: int) -> Tensor | None:
        """Return the function of each element of x as a new contiguous tensor."""
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        arguments = arguments_of(kind, out, x)
        if arguments is None:
            return None
        self._elementwise(*arguments)
        return out

    def layer_norm(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor | None:
        """Return (x - mean) / deviation * weight + bias as a new contiguous tensor."""
        dtype = DTYPES.get(x.dtype)
        if dtype is None or not 0 < x.dim() < 4 or x.stride(-1) != 1 or not x.is_cpu:
            return None
        if not (_fits(weight, x) and _fits(bias, x)):
            return None
        outer, inner = (1, 1, *x.shape[:-1])[-2:]
        outer_stride, inner_stride = (0, 0, *x.stride()[:-1])[-2:]
        out = x.new_empty(x.shape)
        self._layer_norm(
            out.data_ptr(), x.data_ptr(), _address(weight), _address(bias),
            outer, inner, x.shape[-1], outer_stride, inner_stride, eps, dtype,
        )  # fmt: skip
        return out

    def take(self, table: Tensor, ids: Tensor) -> Tensor | None:
        """Return the rows [n, width] of a plain table.

        Raises `IndexError` for an id [n] that is out of range.
        """
        if (
            table.dim() != 2
            or table.stride(1) != 1
            or ids.dim() != 1
            or ids.dtype is not torch.int64
            or not table.is_cpu
        ):
            return None
        ids = ids.contiguous()
        rows, width = table.shape
        out = table.new_empty(len(ids), width)
        size = table.itemsize
        if self._take(
            out.data_ptr(), table.data_ptr(), ids.data_ptr(), len(ids), rows, width * size,
            table.stride(0) * size
        ):  # fmt: skip
            raise IndexError(
                f"row ids: got {int(ids.min())} to {int(ids.max())}; expected 0 to {rows - 1}"
            )
        return out


def arguments_of(
    kind: int, out: Tensor, a: Tensor, b: Tensor | float | None = None
) -> tuple[Any, ...] | None:
    """Return the library's arguments for out = kind(a, b); None: unsupported.

    b has the shape of a, or is broadcast: one number, one row, or one number per row.
    """
    facts = _facts(out, a, b)
    return None if facts is None else (*facts, kind, DTYPES[out.dtype])


def _facts(out: Tensor, a: Tensor, b: Tensor | float | None) -> tuple[Any, ...] | None:
    if (
        out.dtype not in DTYPES
        or a.dtype is not out.dtype
        or a.shape != out.shape
        or not out.is_cpu
    ):
        return None
    of_out = _rows(out)
    of_a = _rows(a)
    if of_out is None or of_a is None:
        return None
    rows, width, stride = of_out
    addresses = (out.data_ptr(), a.data_ptr())
    if not isinstance(b, torch.Tensor):
        return (*addresses, None, rows, width, stride, of_a[2], 0, 0, float(b or 0.0))
    if b.dtype is not out.dtype or not b.is_cpu or b.dim() > out.dim():
        return None
    if (
        out.dim() == 3
        and b.shape == out.shape[1:]
        and out.is_contiguous()
        and a.is_contiguous()
        and b.is_contiguous()
    ):
        width = b.numel()
        return (*addresses, b.data_ptr(), out.shape[0], width, width, width, 0, 1, 0.0)
    strides = _broadcast_strides(b, out, rows, width)
    if strides is None:
        return None
    return (*addresses, b.data_ptr(), rows, width, stride, of_a[2], *strides, 0.0)


def _broadcast_strides(b: Tensor, out: Tensor, rows: int, width: int) -> tuple[int, int] | None:
    """Return the row and column stride of b, broadcast to out; None: unsupported."""
    if b.numel() == 1:
        return 0, 0
    if b.shape[-1] == b.numel() == width and b.stride(-1) == 1:
        return 0, 1
    if b.dim() == 2 and out.dim() == 2 and b.shape == (rows, 1):
        return b.stride(0), 0
    if b.shape == out.shape and (own := _rows(b)) is not None:
        return own[2], 1
    return None


def _rows(x: Tensor) -> tuple[int, int, int] | None:
    """Return number, width and stride of x viewed as rows; None: x is no matrix of rows."""
    if x.dim() == 0 or x.numel() == 0:
        return None
    if x.is_contiguous():
        width = x.shape[-1]
        return x.numel() // width, width, width
    if x.dim() == 1 or x.stride(-1) != 1:
        return None
    if x.dim() == 2:
        return x.shape[0], x.shape[1], x.stride(0)
    if x.dim() == 3 and x.stride(0) == x.shape[1] * x.stride(1):
        return x.shape[0] * x.shape[1], x.shape[2], x.stride(1)
    return None


def _fits(weight: Tensor | None, x: Tensor) -> bool:
    return weight is None or (
        weight.dtype is x.dtype and weight.is_contiguous() and weight.numel() == x.shape[-1]
    )


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
