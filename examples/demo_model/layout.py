"""Conversations of different lengths in one batch: one behind the other for every layer, in rows
for attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

_MOST_FILLING: Final = 1.35
"""A conversation this many times as long as the shortest of its rows begins another block of rows.
"""
IGNORED: Final = -1
"""The target of a token whose next one is not learnt."""
_LENGTHS: Final = 32
"""Rows are filled up to a multiple of this: products of a new shape cost a CPU a compilation."""
_FILLING: Final = -1
"""The branch of a place that holds no token of its conversation."""


@dataclass(frozen=True, slots=True)
class Row:
    """Conversations that begin alike: their common beginning once, and a branch for the rest of
    each.
    """

    ids: list[int]
    targets: list[int]
    """The next token where the model is to say it, else `IGNORED`."""
    positions: list[int]
    """Each branch counts on from the beginning."""
    branches: list[int]
    """0 for the common beginning, then 1, 2, ..."""


def plain_row(ids: list[int]) -> Row:
    """Return one conversation of which nothing is learnt."""
    return Row(ids, [IGNORED] * len(ids), list(range(len(ids))), [0] * len(ids))


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each token lies among the rows, which are filled up at their ends."""

    positions: Tensor  # [tokens]
    source: Tensor  # [places], the token of each place; any token where it is filling
    place: Tensor  # [tokens]
    unseen: tuple[
        Tensor, ...
    ]  # of each block [rows, length, length]: what a token must not look at

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the blocks of rows. x: [tokens, ...]"""
        rows: Tensor = _ToRows.apply(x, self.source, self.place)  # type: ignore[no-untyped-call]
        return torch.split(rows, [block.shape[0] * block.shape[1] for block in self.unseen])

    def join(self, blocks: Sequence[Tensor]) -> Tensor:
        """Return the tokens of the blocks, filling left out."""
        tokens: Tensor = _ToTokens.apply(torch.cat(list(blocks)), self.place)  # type: ignore[no-untyped-call]
        return tokens

    def to(self, device: torch.device) -> Layout:
        """Return the layout on a device."""
        unseen = tuple(block.to(device) for block in self.unseen)
        return Layout(
            self.positions.to(device), self.source.to(device), self.place.to(device), unseen
        )


def make_layout(rows: Sequence[Row]) -> Layout:
    """Return the layout of rows whose lengths do not fall."""
    blocks: list[list[Row]] = []
    for row in rows:
        if not blocks or len(row.ids) > _MOST_FILLING * _filled(blocks[-1][0]):
            blocks.append([])
        blocks[-1].append(row)
    source: list[int] = []
    place: list[int] = []
    for block in blocks:
        longest = _filled(block[-1])
        for row in block:
            begin = len(place)
            length = len(row.ids)
            place += range(len(source), len(source) + length)
            source += [*range(begin, begin + length), *[begin] * (longest - length)]
    positions = [position for row in rows for position in row.positions]
    unseen = tuple(_unseen(block) for block in blocks)
    return Layout(torch.tensor(positions), torch.tensor(source), torch.tensor(place), unseen)


def _filled(row: Row) -> int:
    return -(-len(row.ids) // _LENGTHS) * _LENGTHS


def _unseen(block: list[Row]) -> Tensor:
    """Return what is later or in another branch. [rows, length, length]"""
    longest = _filled(block[-1])
    branches = torch.tensor([row.branches + [_FILLING] * (longest - len(row.ids)) for row in block])
    of_others = (branches[:, None, :] != branches[:, :, None]) & (branches[:, None, :] != 0)
    return of_others | torch.ones(longest, longest, dtype=torch.bool).triu_(1)


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
