"""The same weights and products in plain torch, for machines without the C++ library: right, as
small, and slow.
"""

from __future__ import annotations

from typing import Final

import torch
from core_kernels.superblocks import KINDS
from torch.nn.functional import linear

from engine_gguf.kinds import KINDS as STORED
from engine_gguf.numbers import unblocked

Tensor = torch.Tensor


class TorchOps:
    """The calls of `core_kernels.superblocks.SuperblockOps`.

    Weights are rows of blocks, and made plain for each product.
    """

    def __init__(self, kind: str) -> None:
        self.block: Final = KINDS[kind]
        self._stored: Final = STORED[self.block.number]

    def empty(self, rows: int, width: int, count: int | None = None) -> Tensor:
        """Return memory for a weight [rows, width], or for `count` of them."""
        shape = (rows, width // self.block.inputs, self.block.num_bytes)
        return torch.empty(shape if count is None else (count, *shape), dtype=torch.uint8)

    def pack(self, weight: Tensor, rows: int, first: int, tensor: Tensor) -> None:
        """Put uint8 [n, blocks, bytes of a block] to rows from `first` on."""
        del rows
        weight[first : first + len(tensor)] = tensor

    def rows(
        self, weight: Tensor, rows: int, width: int, ids: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return the rows [n, width] of numbers [n]. Raises `IndexError` for one that there is not."""
        del rows, width
        return unblocked(weight[ids], self._stored).to(dtype)

    def linear(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Write x @ weight.T to `out`."""
        out.copy_(linear(x, unblocked(weight.detach(), self._stored).to(x.dtype)))

    def grouped(self, x: Tensor, weights: Tensor, counts: Tensor, out: Tensor) -> None:
        """Write the product of each row of x with one of `weights`; the first counts[0] rows are
        for the first.
        """
        at = 0
        for weight, count in zip(weights, counts.tolist(), strict=True):
            if count:
                self.linear(x[at : at + count], weight, out[at : at + count])
            at += count
