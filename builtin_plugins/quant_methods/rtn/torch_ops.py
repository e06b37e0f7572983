"""Round-to-nearest weights in plain torch, for machines without the C++ library; slow."""

from __future__ import annotations

from typing import Final

import torch
from core_kernels.quantized import WIDTH_MULTIPLE, row_bytes
from torch.nn.functional import linear, pad

Tensor = torch.Tensor


class TorchOps:
    """Same methods as `core_kernels.quantized.QuantizedOps`.

    A row is stored by itself: scales, then offset integers.

    With four bits, a byte's lower half is from the first half of the row. Weights are dequantized
    for each product.
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
        filled = -(-width // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
        groups = -(-width // self.group)
        numbers = pad(tensor.float(), (0, groups * self.group - width)).view(
            count, groups, self.group
        )
        low = numbers.amin(-1, keepdim=True)
        high = numbers.amax(-1, keepdim=True)
        if (
            self.bits == 4
            # The number furthest from zero becomes -8: int4 has one more negative than positive
            # integer.
        ):
            scales = torch.where(-low > high, low, high) / -self._zero
        else:
            scales = torch.maximum(-low, high) / (self._zero - 1)
        scales = scales.bfloat16()
        codes = (numbers / torch.where(scales == 0, 1, scales).float()).round()
        codes = (
            codes.clamp(1 - self._zero if self.bits == 8 else -self._zero, self._zero - 1)
            + self._zero
        )
        packed = codes.to(torch.uint8).flatten(1)[:, :filled]
        if self.bits == 4:
            packed = packed[:, : filled // 2] | packed[:, filled // 2 :] << 4
        weight[first : first + count] = torch.cat((scales.flatten(1).view(torch.uint8), packed), 1)

    def rows(
        self, weight: Tensor, rows: int, width: int, ids: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return the rows [n, width] with ids [n]. Raises `IndexError` for an unknown id."""
        return self._plain(weight[ids], width).to(dtype)

    def linear(self, x: Tensor, weight: Tensor, rows: int) -> Tensor:
        """Return x @ weight.T, [..., rows]."""
        return linear(x, self._plain(weight, x.shape[-1]).to(x.dtype))

    def grouped(self, x: Tensor, weights: Tensor, rows: int, choices: Tensor) -> Tensor:
        """Return each row's product with one of `weights`; rows are sorted by choice.

        Rows with the choice `len(weights)` are not computed.
        """
        chosen = choices.flatten().sort().values
        out = x.new_empty(len(x), rows)
        for index in set(chosen.tolist()) - {len(weights)}:
            out[chosen == index] = self.linear(x[chosen == index], weights[index], rows)
        return out

    def _plain(self, weight: Tensor, width: int) -> Tensor:
        groups = -(-width // self.group)
        scales = weight[:, : 2 * groups].contiguous().view(torch.bfloat16)
        packed = weight[:, 2 * groups :]
        codes = torch.cat((packed & 15, packed >> 4), 1) if self.bits == 4 else packed
        numbers = codes.float() - self._zero
        return numbers[:, :width] * scales.float().repeat_interleave(self.group, 1)[:, :width]
