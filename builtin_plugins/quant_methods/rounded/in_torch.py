"""The same weights and products in plain torch, for machines without the C++ library: right, as
small, and slow.
"""

from __future__ import annotations

from typing import Final

import torch
from core_kernels.quantized import FILLED, row_bytes
from torch.nn.functional import linear, pad

Tensor = torch.Tensor


class TorchOps:
    """The calls of `core_kernels.quantized.QuantizedOps`. A row lies by itself: scales, then
    integers above their least.

    Of four bits, a byte has the integer of the first half of a row in its lower half. Weights are
    made plain for each product.
    """

    def __init__(self, bits: int, group: int) -> None:
        self.bits: Final = bits
        self.group: Final = group
        self._zero: Final = 1 << (bits - 1)

    def empty(self, rows: int, width: int, dtype: torch.dtype, count: int | None = None) -> Tensor:
        """Return memory for a weight [rows, width], or for `count` of them."""
        del dtype
        own = row_bytes(width, self.bits, self.group)
        return torch.empty((rows, own) if count is None else (count, rows, own), dtype=torch.uint8)

    def pack(self, weight: Tensor, rows: int, first: int, tensor: Tensor) -> None:
        """Round a plain [n, width] to rows from `first` on."""
        count, width = tensor.shape
        filled = -(-width // FILLED) * FILLED
        groups = -(-width // self.group)
        numbers = pad(tensor.float(), (0, groups * self.group - width)).view(
            count, groups, self.group
        )
        least = numbers.amin(-1, keepdim=True)
        most = numbers.amax(-1, keepdim=True)
        if (
            self.bits == 4
            # the number furthest from zero becomes -8: there is one more integer below zero than
            # above it
        ):
            scales = torch.where(-least > most, least, most) / -self._zero
        else:
            scales = torch.maximum(-least, most) / (self._zero - 1)
        scales = scales.bfloat16()
        codes = (numbers / torch.where(scales == 0, 1, scales).float()).round()
        codes = (
            codes.clamp(1 - self._zero if self.bits == 8 else -self._zero, self._zero - 1)
            + self._zero
        )
        kept = codes.to(torch.uint8).flatten(1)[:, :filled]
        if self.bits == 4:
            kept = kept[:, : filled // 2] | kept[:, filled // 2 :] << 4
        weight[first : first + count] = torch.cat((scales.flatten(1).view(torch.uint8), kept), 1)

    def rows(
        self, weight: Tensor, rows: int, width: int, ids: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return the rows [n, width] of numbers [n]. Raises `IndexError` for one that there is not."""
        return self._plain(weight[ids], width).to(dtype)

    def linear(self, x: Tensor, weight: Tensor, rows: int) -> Tensor:
        """Return x @ weight.T, [..., rows]."""
        return linear(x, self._plain(weight, x.shape[-1]).to(x.dtype))

    def grouped(self, x: Tensor, weights: Tensor, rows: int, choices: Tensor) -> Tensor:
        """Return the product of each row of x with one of `weights`; rows are sorted by `choices`,
        in any order.
        """
        chosen = choices.flatten().sort().values
        out = x.new_empty(len(x), rows)
        for index in set(chosen.tolist()):
            out[chosen == index] = self.linear(x[chosen == index], weights[index], rows)
        return out

    def _plain(self, weight: Tensor, width: int) -> Tensor:
        groups = -(-width // self.group)
        scales = weight[:, : 2 * groups].contiguous().view(torch.bfloat16)
        kept = weight[:, 2 * groups :]
        codes = torch.cat((kept & 15, kept >> 4), 1) if self.bits == 4 else kept
        numbers = codes.float() - self._zero
        return numbers[:, :width] * scales.float().repeat_interleave(self.group, 1)[:, :width]
