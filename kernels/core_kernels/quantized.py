"""Weights rounded to integers of eight or four bits with a scale for each group of inputs, and products with them."""

from __future__ import annotations

import ctypes
from typing import Final

import torch

from core_kernels.packed import LANES
from core_kernels.pages import LargePages
from core_kernels.row_ops import DTYPES

Tensor = torch.Tensor

FILLED: Final = 8
"""Rows are filled up to a multiple of it."""
LARGEST_GROUP: Final = 256
"""Sums of a group must fit 32 bits."""


class QuantizedOps:
    """Bound to a loaded library; the same calls as `PackedOps`. Safe to call from several threads.

    A product's row depends on its row of x alone. `group` is how many inputs share a scale; `scales` is what those are,
    bfloat16 or float16. Weights that are rounded here have bfloat16.
    """

    def __init__(self, library: ctypes.CDLL, bits: int, group: int, scales: torch.dtype = torch.bfloat16) -> None:
        if bits not in (4, 8) or not FILLED <= group <= LARGEST_GROUP or group % FILLED:
            allowed = f"bits are 4 or 8, groups multiples of {FILLED} up to {LARGEST_GROUP}"
            raise ValueError(f"{bits} bits in groups of {group}: {allowed}")
        self.bits: Final = bits
        self.group: Final = group
        self.scales: Final = scales
        self._halves: Final = int(scales == torch.float16)
        self._pages: Final = LargePages(library)
        self._pack: Final = library.core_quantize
        self._place: Final = library.core_quantized_place
        self._unpack: Final = library.core_quantized_rows
        self._linear: Final = library.core_quantized_linear
        self._grouped: Final = library.core_quantized_grouped

    def empty(self, rows: int, width: int, dtype: torch.dtype, count: int | None = None) -> Tensor:
        """Return memory for a weight [rows, width], or for `count` of them; numbers of any dtype are kept alike."""
        del dtype
        tiles, across = -(-rows // LANES), LANES * row_bytes(width, self.bits, self.group)
        shape = (tiles, across) if count is None else (count, tiles, across)
        return self._pages.take((1 if count is None else count) * tiles * across).view(shape)

    def pack(self, weight: Tensor, rows: int, first: int, tensor: Tensor) -> None:
        """Round a plain [n, width], with any strides, to rows from `first` on of a weight of so many rows."""
        self._fits(weight, tensor.shape[1])
        if weight.is_meta:  # of a model that is only planned
            return
        tensor = tensor if tensor.dtype in DTYPES else tensor.float()
        self._pack(
            weight.data_ptr(), tensor.data_ptr(), first, *tensor.shape, *tensor.stride(), rows,
            self.bits, self.group, DTYPES[tensor.dtype],
        )  # fmt: skip

    def place(self, weight: Tensor, rows: int, first: int, codes: Tensor, scales: Tensor) -> None:
        """Fill rows from `first` on with int8 codes [n, width] and scales [n, groups].

        Of four bits, codes are -8 to 7.
        """
        count, width = codes.shape
        self._fits(weight, width)
        if scales.shape != (count, -(-width // self.group)) or codes.dtype != torch.int8:
            raise ValueError(
                f"codes of {codes.dtype} {list(codes.shape)} with scales {list(scales.shape)} in groups of {self.group}"
            )
        if weight.is_meta:
            return
        codes, scales = codes.contiguous(), scales.to(self.scales).contiguous()
        self._place(
            weight.data_ptr(), codes.data_ptr(), scales.data_ptr(), first, count, width, codes.stride(0), rows,
            self.bits, self.group, self._halves,
        )  # fmt: skip

    def rows(self, weight: Tensor, rows: int, width: int, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the rows [n, width] of numbers [n]. Raises `IndexError` for one that is none of `rows`."""
        self._fits(weight, width)
        ids = ids.contiguous()
        out = torch.empty(len(ids), width, dtype=dtype)
        if self._unpack(
            out.data_ptr(), weight.data_ptr(), ids.data_ptr(), len(ids), width, rows,
            self.bits, self.group, self._halves, DTYPES[dtype],
        ):  # fmt: skip
            raise IndexError(f"a row of {int(ids.min())} to {int(ids.max())} is asked for; there are {rows}")
        return out

    def linear(self, x: Tensor, weight: Tensor, rows: int) -> Tensor:
        """Return x @ weight.T, [..., rows]."""
        flat, width = self._rows_of(x, weight), x.shape[-1]
        out = x.new_empty(*x.shape[:-1], rows)
        self._linear(
            out.data_ptr(), flat.data_ptr(), weight.data_ptr(), flat.shape[0], rows, width, flat.stride(0),
            self.bits, self.group, self._halves, DTYPES[x.dtype],
        )  # fmt: skip
        return out

    def grouped(self, x: Tensor, weights: Tensor, rows: int, choices: Tensor) -> Tensor:
        """Return the product of each row of x with one of `weights`, [n, rows].

        `choices` int64 names, in any order, which weight each row is for; rows of x are sorted by that.
        """
        flat = self._rows_of(x, weights)
        counts = torch.bincount(choices.flatten(), minlength=len(weights))
        out = x.new_empty(len(x), rows)
        self._grouped(
            out.data_ptr(), flat.data_ptr(), weights.data_ptr(), counts.data_ptr(), len(weights), rows, x.shape[-1],
            flat.stride(0), self.bits, self.group, self._halves, DTYPES[x.dtype],
        )  # fmt: skip
        return out

    def _rows_of(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x as rows that the library can read."""
        width = x.shape[-1]
        self._fits(weight, width)
        flat = x if x.dim() == 2 else x.reshape(-1, width)
        return flat if flat.stride(1) == 1 or width < 2 else flat.contiguous()

    def _fits(self, weight: Tensor, width: int) -> None:
        if weight.shape[-1] != LANES * row_bytes(width, self.bits, self.group):
            raise ValueError(
                f"numbers of width {width} do not fit a weight of {self.bits} bits with {weight.shape[-1]} bytes"
            )


def row_bytes(width: int, bits: int, group: int) -> int:
    """Return how many bytes a row takes, its scales included."""
    return 2 * -(-width // group) + -(-width // FILLED) * FILLED * bits // 8
