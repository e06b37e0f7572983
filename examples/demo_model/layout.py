"""Conversations of different lengths in one batch: concatenated, and in rows for attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

_MAX_LENGTH_RATIO: Final = 1.35
"""Maximum length ratio of a block of rows; longer conversations start another block."""
IGNORED: Final = -1
"""The target of a token without a learnt next token."""
_LENGTHS: Final = 32
"""Rows are padded to a multiple of this, since new matrix shapes cost a compilation."""
_FILLING: Final = -1
"""The branch of a padding slot."""


@dataclass(frozen=True, slots=True)
class Row:
    """Conversations with a common prefix: the prefix once, and a branch for the rest of each."""

    ids: list[int]
    targets: list[int]
    """The next token if it is learnt, else `IGNORED`."""
    positions: list[int]
    """Positions; each branch continues from the prefix."""
    branches: list[int]
    """0 for the prefix, then 1, 2, ..."""


def plain_row(ids: list[int]) -> Row:
    """Return one conversation without learnt tokens."""
    return Row(ids, [IGNORED] * len(ids), list(range(len(ids))), [0] * len(ids))


@dataclass(frozen=True, slots=True)
class Layout:
    """The slots of tokens in the padded rows."""

    positions: Tensor  # [tokens]
    source: Tensor  # [slots], the token of each slot; any token for padding
    slots: Tensor  # [tokens]
    unseen: tuple[
        Tensor, ...
    ]  # of each block [rows, length, length]: what a token must not attend to

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the blocks of rows. x: [tokens, ...]"""
        rows: Tensor = _ToRows.apply(x, self.source, self.slots)  # type: ignore[no-untyped-call]
        return torch.split(rows, [block.shape[0] * block.shape[1] for block in self.unseen])

    def join(self, blocks: Sequence[Tensor]) -> Tensor:
        """Return the tokens of the blocks, without padding."""
        rows = torch.cat(list(blocks))
        tokens: Tensor = _ToTokens.apply(rows, self.slots)  # type: ignore[no-untyped-call]
        return tokens

    def to(self, device: torch.device) -> Layout:
        """Return the layout on a device."""
        unseen = tuple(block.to(device) for block in self.unseen)
        return Layout(
            self.positions.to(device), self.source.to(device), self.slots.to(device), unseen
        )


def make_layout(rows: Sequence[Row]) -> Layout:
    """Return the layout of rows in order of length."""
    blocks: list[list[Row]] = []
    for row in rows:
        if not blocks or len(row.ids) > _MAX_LENGTH_RATIO * _filled(blocks[-1][0]):
            blocks.append([])
        blocks[-1].append(row)
    source: list[int] = []
    slots: list[int] = []
    for block in blocks:
        longest = _filled(block[-1])
        for row in block:
            begin = len(slots)
            length = len(row.ids)
            slots += range(len(source), len(source) + length)
            source += [*range(begin, begin + length), *[begin] * (longest - length)]
    positions = [position for row in rows for position in row.positions]
    unseen = tuple(_unseen(block) for block in blocks)
    return Layout(torch.tensor(positions), torch.tensor(source), torch.tensor(slots), unseen)


def _filled(row: Row) -> int:
    return -(-len(row.ids) // _LENGTHS) * _LENGTHS


def _unseen(block: list[Row]) -> Tensor:
    """Return the mask of later tokens and other branches. [rows, length, length]"""
    longest = _filled(block[-1])
    branches = torch.tensor([row.branches + [_FILLING] * (longest - len(row.ids)) for row in block])
    of_others = (branches[:, None, :] != branches[:, :, None]) & (branches[:, None, :] != 0)
    return of_others | torch.ones(longest, longest, dtype=torch.bool).triu_(1)


class _ToRows(torch.autograd.Function):
    """Tokens to rows. Padding has no gradient, so the backward pass is a selection."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Tensor, slots: Tensor) -> Tensor:
        ctx.save_for_backward(slots)
        return x.index_select(0, source)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


class _ToTokens(torch.autograd.Function):
    """Rows to tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slots: Tensor) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.num_slots = x.shape[0]
        return x.index_select(0, slots)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        rows = grad.new_zeros((ctx.num_slots, *grad.shape[1:]))
        return rows.index_copy_(0, ctx.saved_tensors[0], grad), None
