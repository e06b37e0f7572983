"""Weights of eight-bit floats with a scale for each group of inputs, and products with them."""

from __future__ import annotations

import ctypes
from typing import Final

import torch

from core_kernels.packed import LANES, as_rows
from core_kernels.pages import LargePages
from core_kernels.quantized import FILLED, LARGEST_GROUP, row_bytes
from core_kernels.row_ops import DTYPES

Tensor = torch.Tensor

KINDS: Final = {torch.float8_e4m3fn: 0, torch.float8_e5m2: 1}
"""Numbers by which the library knows them."""
SCALE_BYTES: Final = 4


class FloatOps:
    """Bound to a loaded library; the same calls as `PackedOps`. Safe to call from several threads.

    A product's row depends on its row of x alone. `group` is how many inputs share a scale, which is float32.
    """

    def __init__(self, library: ctypes.CDLL, kind: torch.dtype, group: int) -> None:
        if kind not in KINDS or not FILLED <= group <= LARGEST_GROUP or group % FILLED:
            allowed = f"{', '.join(map(str, KINDS))}; groups are multiples of {FILLED} up to {LARGEST_GROUP}"
            raise ValueError(f"{kind} in groups of {group}: floats are {allowed}")
        self.kind: Final = kind
        self.group: Final = group
        self._facts: Final = (group, KINDS[kind])
        self._pages: Final = LargePages(library)
        self._place: Final = library.core_floats_place
        self._unpack: Final = library.core_floats_rows
        self._linear: Final = library.core_floats_linear
        self._grouped: Final = library.core_floats_grouped

    def row_bytes(self, width: int) -> int:
        """Return how many bytes a row takes, its scales included."""
        return row_bytes(width, 8, self.group, SCALE_BYTES)

    def empty(self, rows: int, width: int, dtype: torch.dtype, count: int | None = None) -> Tensor:
        """Return memory for a weight [rows, width], or for `count` of them, for x of any dtype."""
        del dtype
        tiles, across = -(-rows // LANES), LANES * self.row_bytes(width)
        shape = (tiles, across) if count is None else (count, tiles, across)
        return self._pages.take((1 if count is None else count) * tiles * across).view(shape)

    def place(self, weight: Tensor, rows: int, first: int, values: Tensor, scales: Tensor) -> None:
        """Fill rows from `first` on with floats [n, width] of this kind and scales [n, groups]."""
        count, width = values.shape
        self._fits(weight, width)
        if scales.shape != (count, -(-width // self.group)) or values.dtype != self.kind:
            raise ValueError(
                f"{values.dtype} {list(values.shape)} with scales {list(scales.shape)} in groups of {self.group} of {self.kind}"
            )
        if weight.is_meta:  # of a model that is only planned
            return
        values, scales = values.contiguous(), scales.float().contiguous()
        self._place(
            weight.data_ptr(), values.data_ptr(), scales.data_ptr(), first, count, width, values.stride(0), rows,
            *self._facts,
        )  # fmt: skip

    def rows(self, weight: Tensor, rows: int, width: int, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the rows [n, width] of numbers [n]. Raises `IndexError` for one that is none of `rows`."""
        self._fits(weight, width)
        ids = ids.contiguous()
        out = torch.empty(len(ids), width, dtype=dtype)
        if self._unpack(
            out.data_ptr(), weight.data_ptr(), ids.data_ptr(), len(ids), width, rows, *self._facts, DTYPES[dtype]
        ):
            raise IndexError(f"a row of {int(ids.min())} to {int(ids.max())} is asked for; there are {rows}")
        return out

    def linear(self, x: Tensor, weight: Tensor, rows: int) -> Tensor:
        """Return x @ weight.T, [..., rows]."""
        flat, width = self._rows_of(x, weight), x.shape[-1]
        out = x.new_empty(*x.shape[:-1], rows)
        self._linear(
            out.data_ptr(), flat.data_ptr(), weight.data_ptr(), flat.shape[0], rows, width, flat.stride(0),
            *self._facts, DTYPES[x.dtype],
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
            flat.stride(0), *self._facts, DTYPES[x.dtype],
        )  # fmt: skip
        return out

    def _rows_of(self, x: Tensor, weight: Tensor) -> Tensor:
        self._fits(weight, x.shape[-1])
        return as_rows(x)

    def _fits(self, weight: Tensor, width: int) -> None:
        if weight.shape[-1] != LANES * self.row_bytes(width):
            raise ValueError(f"{weight.shape[-1]} bytes a tile are no weight of eight-bit floats of width {width}")
