"""Conversations of different lengths in one batch: one behind the other for every layer, in rows for attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

_MOST_FILLING: Final = 1.35
"""A conversation this many times as long as the shortest of its rows begins another block of rows."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each token lies among the rows, which are filled up at their ends."""

    positions: Tensor  # [tokens]
    source: Tensor  # [places], the token of each place; any token where it is filling
    place: Tensor  # [tokens]
    sizes: tuple[tuple[int, int], ...]
    """Rows and length of each block."""

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the blocks of rows. x: [tokens, ...]"""
        rows: Tensor = _ToRows.apply(x, self.source, self.place)  # type: ignore[no-untyped-call]
        return torch.split(rows, [count * length for count, length in self.sizes])

    def join(self, blocks: Sequence[Tensor]) -> Tensor:
        """Return the tokens of the blocks, filling left out."""
        tokens: Tensor = _ToTokens.apply(torch.cat(list(blocks)), self.place)  # type: ignore[no-untyped-call]
        return tokens

    def to(self, device: torch.device) -> Layout:
        """Return the layout on a device."""
        return Layout(self.positions.to(device), self.source.to(device), self.place.to(device), self.sizes)


def make_layout(lengths: Sequence[int]) -> Layout:
    """Return the layout of conversations of these lengths, which must not fall."""
    blocks: list[list[int]] = []
    for length in lengths:
        if not blocks or length > _MOST_FILLING * blocks[-1][0]:
            blocks.append([])
        blocks[-1].append(length)
    source: list[int] = []
    place: list[int] = []
    for block in blocks:
        for length in block:
            begin = len(place)
            place += range(len(source), len(source) + length)
            source += [*range(begin, begin + length), *[begin] * (max(block) - length)]
    positions = [position for length in lengths for position in range(length)]
    sizes = tuple((len(block), max(block)) for block in blocks)
    return Layout(torch.tensor(positions), torch.tensor(source), torch.tensor(place), sizes)


class _ToRows(torch.autograd.Function):
    """Tokens into rows. The gradient of filling is zero, so going back is a selection and no sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return x.index_select(0, source)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


class _ToTokens(torch.autograd.Function):
    """Rows into tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.places = x.shape[0]
        return x.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        rows = grad.new_zeros((ctx.places, *grad.shape[1:]))
        return rows.index_copy_(0, ctx.saved_tensors[0], grad), None
