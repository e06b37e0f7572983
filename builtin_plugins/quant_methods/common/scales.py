"""Scales as checkpoints have them (of a tensor, of rows, of groups, of blocks) as one for each row
and group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch

from core.api import ModelError, Part

WHOLE = 0
"""As many as there are."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Rows and columns of a weight that have one scale together."""

    rows: int
    columns: int

    def counts(self, part: Part) -> tuple[int, int]:
        """Return how many scales there are along either axis of the whole weight."""
        rows = self.rows or part.out_features
        columns = self.columns or part.in_features
        return -(-part.out_features // rows), -(-part.in_features // columns)

    def group(self, part: Part) -> int:
        """Return the columns that share a scale on this rank."""
        return self.columns or part.columns_in.stop - part.columns_in.start

    def check(self, part: Part) -> None:
        """Raise `ModelError` where ranks would cut a group of columns."""
        if self.columns:
            part.columns(torch.empty(1, self.counts(part)[1], device="meta"), per=self.columns)

    def of_rank(self, scales: torch.Tensor, part: Part) -> torch.Tensor:
        """Return the rank's [rows, groups], each row with its own.

        Raises `ModelError` for another number of them.
        """
        return self.columns_of(self.rows_of(scales, part), part)

    def rows_of(self, scales: torch.Tensor, part: Part) -> torch.Tensor:
        """Return those of all groups of the rank's rows."""
        rows, columns = self.counts(part)
        if scales.numel() != rows * columns:
            raise ModelError(
                f"has scales of shape {list(scales.shape)}; the quantization config says one for "
                f"{self.rows or 'all'} rows "
                f"and {self.columns or 'all'} columns of [{part.out_features}, "
                f"{part.in_features}], which is "
                f"[{rows}, {columns}]."
            )
        scales = scales.reshape(rows, columns)
        if rows == 1:
            scales = scales.expand(part.out_features, columns)
        elif rows != part.out_features:
            return scales[row_numbers(part) // self.rows]
        return part.rows(scales)

    def columns_of(self, scales: torch.Tensor, part: Part) -> torch.Tensor:
        """Return those of the rank's inputs."""
        return part.columns(scales, per=self.columns) if scales.shape[1] > 1 else scales


def is_pair(block: Any) -> TypeGuard[Sequence[int]]:
    """Say whether it is how many rows and columns a block has, as configs state them."""
    return (
        isinstance(block, (list, tuple))
        and len(block) == 2
        and all(type(size) is int and size > 0 for size in block)
    )


def row_numbers(part: Part) -> torch.Tensor:
    """Return which of the weight's rows are the rank's, in the layer's order."""
    return torch.cat([torch.arange(own.start, own.stop, own.step or 1) for own, _ in part.pieces])
