"""What weights in tiles of sixteen rows have in common, however their numbers are stored: memory,
rows, products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

import torch

from core_kernels.library import Library
from core_kernels.packed import LANES
from core_kernels.row_ops import DTYPES

Tensor = torch.Tensor


class TiledOps(ABC):
    """Memory, rows and fitting of such weights; bound to a loaded library.

    Safe to call from several threads.
    """

    def __init__(self, library: Library, unpack: Any, facts: tuple[int, ...], what: str) -> None:
        """`facts` are what functions such as `unpack` are told of the format; `what` names it in
        errors.
        """
        self._library: Final = library
        self._unpack: Final = unpack
        self._facts: Final = facts
        self._what: Final = what

    @abstractmethod
    def row_bytes(self, width: int) -> int:
        """Return how many bytes a row takes, with all that belongs to it."""

    def rows(
        self, weight: Tensor, rows: int, width: int, ids: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return the rows [n, width] of numbers [n].

        Raises `IndexError` for one that is none of `rows`.
        """
        self._fits(weight, width)
        ids = ids.contiguous()
        out = torch.empty(len(ids), width, dtype=dtype)
        if self._unpack(
            out.data_ptr(),
            weight.data_ptr(),
            ids.data_ptr(),
            len(ids),
            width,
            rows,
            *self._facts,
            DTYPES[dtype],
        ):
            raise IndexError(
                f"a row of {int(ids.min())} to {int(ids.max())} is asked for; there are {rows}"
            )
        return out

    def _take(self, rows: int, width: int, count: int | None) -> Tensor:
        tiles = -(-rows // LANES)
        across = LANES * self.row_bytes(width)
        shape = (tiles, across) if count is None else (count, tiles, across)
        return self._library.pages.take((1 if count is None else count) * tiles * across).view(
            shape
        )

    def _fits(self, weight: Tensor, width: int) -> None:
        if weight.shape[-1] != LANES * self.row_bytes(width):
            raise ValueError(
                f"{weight.shape[-1]} bytes a tile are no weight of {self._what} of width {width}"
            )


class ScaledOps(TiledOps):
    """Numbers with a scale for each group of inputs; the same calls as `PackedOps`."""

    _grouped: Any

    def empty(self, rows: int, width: int, dtype: torch.dtype, count: int | None = None) -> Tensor:
        """Return memory for a weight [rows, width], or for `count` of them; numbers of any dtype
        are kept alike.
        """
        del dtype
        return self._take(rows, width, count)

    def grouped(self, x: Tensor, weights: Tensor, rows: int, choices: Tensor) -> Tensor:
        """Return the product of each row of x with one of `weights`, [n, rows].

        `choices` int64 names, in any order, which weight each row is for; rows of x are sorted by
        that.
        """
        flat = self._rows_of(x, weights)
        counts = torch.bincount(choices.flatten(), minlength=len(weights))
        out = x.new_empty(len(x), rows)
        self._grouped(
            out.data_ptr(), flat.data_ptr(), weights.data_ptr(), counts.data_ptr(), len(weights), rows, x.shape[-1],
            flat.stride(0), *self._told(x),
        )  # fmt: skip
        return out

    def _told(self, x: Tensor) -> tuple[int, ...]:
        """Return what a product with x is told of the format and of x."""
        return (*self._facts, DTYPES[x.dtype])

    def _rows_of(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x as rows that the library can read."""
        width = x.shape[-1]
        self._fits(weight, width)
        flat = x if x.dim() == 2 else x.reshape(-1, width)
        return flat if flat.stride(1) == 1 or width < 2 else flat.contiguous()
