"""Packed weights of linear layers, and GEMM with them."""

from __future__ import annotations

import ctypes
from typing import Final

import torch
from torch.nn.functional import pad

from core_kernels.row_ops import DTYPES

Tensor = torch.Tensor

LANES: Final = 16
LARGE_PAGE: Final = 2 << 20
MANY_ROWS: Final = 257
"""Rows from which heads are multiplied one by one; recorded steps have fewer."""
PAIRS: Final = (torch.bfloat16,)
"""Dtypes with two neighbours of a row per unit."""


class PackedOps:
    """GEMM with packed weights of a loaded library.

    Thread-safe and bitwise batch-invariant.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._pack: Final = library.core_pack
        self._unpack: Final = library.core_unpack
        self._linear: Final = library.core_linear
        self._plain: Final = library.core_plain_linear
        self._grouped: Final = library.core_grouped_linear
        self._large_pages: Final = library.core_large_pages

    def empty(self, rows: int, width: int, dtype: torch.dtype, count: int | None = None) -> Tensor:
        """Return memory for a packed weight [rows, width]: [tiles, elements of a tile].

        With `count`, for that many weights. Uses huge pages if it fills one.
        """
        tiles = -(-rows // LANES)
        across = LANES * padded(width, dtype)
        shape = (tiles, across) if count is None else (count, tiles, across)
        num_bytes = (1 if count is None else count) * tiles * across * dtype.itemsize
        if num_bytes < LARGE_PAGE:
            return torch.empty(shape, dtype=dtype)
        memory = torch.empty(num_bytes + LARGE_PAGE, dtype=torch.uint8)
        if memory.is_meta:  # memory plan: no data
            return memory[:num_bytes].view(dtype).view(shape)
        start = -memory.data_ptr() % LARGE_PAGE
        self._large_pages(memory.data_ptr() + start, num_bytes // LARGE_PAGE * LARGE_PAGE)
        return memory[start : start + num_bytes].view(dtype).view(shape)

    def pack(self, weight: Tensor, rows: int, first: int, tensor: Tensor) -> None:
        """Pack a plain [n, width], with any strides, into rows from `first` of a weight of `rows`
        rows.
        """
        if weight.is_meta:  # memory plan: no data
            return
        tensor = tensor.to(weight.dtype)
        self._pack(
            weight.data_ptr(), tensor.data_ptr(),
            first, *tensor.shape, *tensor.stride(), rows, DTYPES[weight.dtype],
        )  # fmt: skip

    def rows(self, weight: Tensor, rows: int, width: int, ids: Tensor) -> Tensor:
        """Return the plain rows [n, width] for ids [n].

        Raises `IndexError` for an id that is out of range.
        """
        ids = ids.contiguous()
        out = weight.new_empty(len(ids), width)
        if self._unpack(
            out.data_ptr(), weight.data_ptr(), ids.data_ptr(), len(ids), width, rows,
            DTYPES[weight.dtype]
        ):  # fmt: skip
            raise IndexError(
                f"row ids: got {int(ids.min())} to {int(ids.max())}; expected 0 to {rows - 1}"
            )
        return out

    def linear(self, x: Tensor, weight: Tensor, rows: int, bias: Tensor | None = None) -> Tensor:
        """Return x @ weight.T + bias, [..., rows], for x of the weight's dtype and width."""
        width = x.shape[-1]
        flat = _readable(x, weight)
        out = x.new_empty(*x.shape[:-1], rows)
        self._linear(
            out.data_ptr(), flat.data_ptr(), weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            flat.shape[0], rows, width, flat.stride(0), rows, DTYPES[weight.dtype],
        )  # fmt: skip
        return out

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        """Return x @ weight.T + bias for a plain weight [rows, width] with any strides.

        Bitwise equal to the product with the packed weight. None: unsupported dtype, device or
        size.
        """
        dtype = DTYPES.get(x.dtype)
        if (
            dtype is None
            or weight.dtype is not x.dtype
            or not x.is_cpu
            or weight.dim() != 2
            or x.dim() == 0
        ):
            return None
        if bias is not None and (bias.dtype is not x.dtype or not bias.is_contiguous()):
            return None
        rows, width = weight.shape
        if x.shape[-1] != width:
            return None  # the reference raises the error
        flat = as_rows(x)
        out = x.new_empty(*x.shape[:-1], rows)
        self._plain(
            out.data_ptr(), flat.data_ptr(), weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            flat.shape[0], rows, width, flat.stride(0), *weight.stride(), dtype,
        )  # fmt: skip
        return out

    def grouped(self, x: Tensor, weights: Tensor, rows: int, choices: Tensor) -> Tensor:
        """Return the product of each row of x with one of `weights`, [n, rows].

        `choices` int64 holds the weight of each row in any order; rows of x are sorted by weight.
        """
        counts = torch.bincount(choices.flatten(), minlength=len(weights))
        return self._by_counts(x, weights, rows, counts)

    def per_head(self, x: Tensor, weights: Tensor, rows: int) -> Tensor:
        """Return x [n, heads, width] times each head's weight, [n, heads, rows].

        One call for all heads copies its inputs; for many rows, a call per head reads and writes
        them where they are. The bits are equal.
        """
        n, heads, width = x.shape
        is_readable = x.stride(2) == 1 and width == padded(width, x.dtype)
        if n < MANY_ROWS or not is_readable:
            counts = torch.full((heads,), n, dtype=torch.int64)
            by_head = self._by_counts(x.transpose(0, 1).flatten(0, 1), weights, rows, counts)
            return by_head.view(heads, n, rows).transpose(0, 1)
        out = x.new_empty(n, heads, rows)
        for own, weight, result in zip(x.unbind(1), weights, out.unbind(1), strict=True):
            _readable(own, weight)
            self._linear(
                result.data_ptr(), own.data_ptr(), weight.data_ptr(), None,
                n, rows, width, own.stride(0), out.stride(0), DTYPES[weight.dtype],
            )  # fmt: skip
        return out

    def _by_counts(self, x: Tensor, weights: Tensor, rows: int, counts: Tensor) -> Tensor:
        """Return the product of `counts[i]` consecutive rows of x with the i-th weight."""
        flat = _readable(x, weights)
        out = x.new_empty(len(x), rows)
        self._grouped(
            out.data_ptr(), flat.data_ptr(), weights.data_ptr(), counts.data_ptr(), len(weights),
            rows, x.shape[-1], flat.stride(0), rows, DTYPES[weights.dtype],
        )  # fmt: skip
        return out


def _readable(x: Tensor, weight: Tensor) -> Tensor:
    """Return x as rows for the library.

    Raises `ValueError` if it does not match the weight.
    """
    width = x.shape[-1]
    if x.dtype is not weight.dtype or weight.shape[-1] != LANES * padded(width, x.dtype):
        raise ValueError(
            f"x of {x.dtype} and width {width} does not fit a weight of {weight.dtype}"
        )
    return as_rows(x)


def as_rows(x: Tensor) -> Tensor:
    """Return x as contiguous rows, padded to whole pairs."""
    width = x.shape[-1]
    flat = x if x.dim() == 2 else x.reshape(-1, width)
    if width % 2 and x.dtype in PAIRS:
        return pad(flat, (0, 1))
    return flat if flat.stride(1) == 1 or width < 2 else flat.contiguous()


def padded(width: int, dtype: torch.dtype) -> int:
    """Return the padded width of a row."""
    return width + width % 2 if dtype in PAIRS else width
