"""Weights that are stored as one flat row of numbers, in blocks that share a scale and run on from
one row to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from builtin_plugins.quant_methods.common.scales import row_numbers
from core.api import Part


def numbers_of(part: Part, read: Callable[[int, int], torch.Tensor]) -> torch.Tensor:
    """Return the rank's [rows, columns]; `read` returns the flat numbers from one place to another."""
    width = part.in_features
    found = [
        read(own.start * width, own.stop * width).view(-1, width)[:: own.step]
        for own, _ in part.pieces
    ]
    return part.columns(torch.cat(found))


def blocks_of(part: Part, size: int) -> tuple[int, torch.Tensor]:
    """Return how many neighbours in the rank's rows are in one block, and in which: int64 [rows,
    groups].

    `size`: the numbers of a block. Where blocks end inside of rows, groups are a part of one.
    Raises `ModelError` where they do not, and ranks would cut them.
    """
    own = part.columns_in
    width = part.in_features
    if size < width and width % size == 0:
        part.columns(torch.empty(1, width // size, device="meta"), per=size)
    group = math.gcd(size, width, own.start, own.stop)
    return group, (
        row_numbers(part).unsqueeze(1) * width + torch.arange(own.start, own.stop, group)
    ) // size
