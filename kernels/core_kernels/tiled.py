"""Base classes of packed quantized weights: memory, row access and grouped products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

import torch

from core_kernels.library import Library
from core_kernels.packed import LANES
from core_kernels.row_ops import DTYPES

Tensor = torch.Tensor


class TiledOps(ABC):
    """Weights in tiles of sixteen rows of a loaded library.

    Thread-safe.
    """

    def __init__(self, library: Library, unpack: Any, facts: tuple[int, ...], what: str) -> None:
        """`facts` are the format arguments of library functions such as `unpack`; `what` names the
        format in errors.
        """
        self._library: Final = library
        self._unpack: Final = unpack
        self._facts: Final = facts
        self._what: Final = what

    @abstractmethod
    def row_bytes(self, width: int) -> int:
        """Return the bytes of a row, including scales."""

    def rows(
        self, weight: Tensor, rows: int, width: int, ids: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return the rows [n, width] for ids [n].

        Raises `IndexError` for an id that is out of range.
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
                f"row ids: got {int(ids.min())} to {int(ids.max())}; expected 0 to {rows - 1}"
            )
        return out

    def _allocate(self, rows: int, width: int, count: int | None) -> Tensor:
        tiles = -(-rows // LANES)
        across = LANES * self.row_bytes(width)
        shape = (tiles, across) if count is None else (count, tiles, across)
        return self._library.pages.allocate((1 if count is None else count) * tiles * across).view(
            shape
        )

    def _fits(self, weight: Tensor, width: int) -> None:
        if weight.shape[-1] != LANES * self.row_bytes(width):
            raise ValueError(
                f"{weight.shape[-1]} bytes a tile are no weight of {self._what} of width {width}"
            )


class ScaledOps(TiledOps):
    """Weights with a scale per group of inputs; same interface as `PackedOps`."""

    _grouped: Any

    def empty(self, rows: int, width: int, dtype: torch.dtype, count: int | None = None) -> Tensor:
        """Return memory for a weight [rows, width], or for `count` of them; the dtype is
        ignored.
        """
        del dtype
        return self._allocate(rows, width, count)

    def grouped(self, x: Tensor, weights: Tensor, rows: int, choices: Tensor) -> Tensor:
        """Return the product of each row of x with one of `weights`, [n, rows].

        `choices` int64 holds the weight of each row in any order; rows of x are sorted by weight.
        """
        flat = self._rows_of(x, weights)
        counts = torch.bincount(choices.flatten(), minlength=len(weights))
        out = x.new_empty(len(x), rows)
        self._grouped(
            out.data_ptr(), flat.data_ptr(), weights.data_ptr(), counts.data_ptr(), len(weights),
            rows, x.shape[-1],
            flat.stride(0), *self._call_arguments(x),
        )  # fmt: skip
        return out

    def _call_arguments(self, x: Tensor) -> tuple[int, ...]:
        """Return the format and dtype arguments of a product with x."""
        return (*self._facts, DTYPES[x.dtype])

    def _rows_of(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x as rows for the library."""
        width = x.shape[-1]
        self._fits(weight, width)
        flat = x if x.dim() == 2 else x.reshape(-1, width)
        return flat if flat.stride(1) == 1 or width < 2 else flat.contiguous()
