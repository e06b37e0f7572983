"""Expands checkpoint scales (per tensor, row, group or block) to one per row and group."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch

from core.api import ModelError
from core.model_spec.weight_shard import WeightShard

ALL = 0
"""All rows, or all columns."""


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Rows and columns of a weight that share one scale."""

    rows: int
    columns: int

    def num_scales(self, shard: WeightShard) -> tuple[int, int]:
        """Return the number of scales along each axis of the whole weight."""
        rows = self.rows or shard.out_features
        columns = self.columns or shard.in_features
        return -(-shard.out_features // rows), -(-shard.in_features // columns)

    def group_size(self, shard: WeightShard) -> int:
        """Return the number of this rank's columns that share a scale."""
        return self.columns or shard.columns_in.stop - shard.columns_in.start

    def check(self, shard: WeightShard) -> None:
        """Raise `ModelError` if a shard cuts a group of columns."""
        if self.columns:
            shard.columns(
                torch.empty(1, self.num_scales(shard)[1], device="meta"), per=self.columns
            )

    def for_rank(self, scales: torch.Tensor, shard: WeightShard) -> torch.Tensor:
        """Return this rank's scales [rows, groups].

        Raises `ModelError` for a wrong number of scales.
        """
        return self.shard_columns(self.shard_rows(scales, shard), shard)

    def shard_rows(self, scales: torch.Tensor, shard: WeightShard) -> torch.Tensor:
        """Return the scales of this rank's rows, for all groups."""
        rows, columns = self.num_scales(shard)
        if scales.numel() != rows * columns:
            raise ModelError(
                f"has scales of shape {list(scales.shape)}; expected [{rows}, {columns}], one per "
                f"{self.rows or 'all'} rows and {self.columns or 'all'} columns of "
                f"[{shard.out_features}, {shard.in_features}]."
            )
        scales = scales.reshape(rows, columns)
        if rows == 1:
            scales = scales.expand(shard.out_features, columns)
        elif rows != shard.out_features:
            return scales[row_indices(shard) // self.rows]
        return shard.rows(scales)

    def shard_columns(self, scales: torch.Tensor, shard: WeightShard) -> torch.Tensor:
        """Return the scales of this rank's inputs."""
        return shard.columns(scales, per=self.columns) if scales.shape[1] > 1 else scales


def is_block_shape(block: Any) -> TypeGuard[Sequence[int]]:
    """Return whether `block` is a pair of positive sizes, as configs state blocks."""
    return (
        isinstance(block, (list, tuple))
        and len(block) == 2
        and all(type(size) is int and size > 0 for size in block)
    )


def row_indices(shard: WeightShard) -> torch.Tensor:
    """Return the indices of this rank's rows, in the layer's order."""
    return torch.cat([torch.arange(own.start, own.stop, own.step or 1) for own, _ in shard.pieces])


def read_shard(shard: WeightShard, read: Callable[[int, int], torch.Tensor]) -> torch.Tensor:
    """Return this rank's [rows, columns]; `read` returns a range of the flat weight."""
    width = shard.in_features
    found = [
        read(own.start * width, own.stop * width).view(-1, width)[:: own.step]
        for own, _ in shard.pieces
    ]
    return shard.columns(torch.cat(found))


def block_index(shard: WeightShard, size: int) -> tuple[int, torch.Tensor]:
    """Return (group size, int64 [rows, groups]: the flat block of each group) of this rank's rows.

    `size`: numbers per block. If blocks end inside rows, a group is a part of a block. Raises
    `ModelError` if blocks do not span rows and a shard cuts one.
    """
    own = shard.columns_in
    width = shard.in_features
    if size < width and width % size == 0:
        shard.columns(torch.empty(1, width // size, device="meta"), per=size)
    group = math.gcd(size, width, own.start, own.stop)
    return group, (
        row_indices(shard).unsqueeze(1) * width + torch.arange(own.start, own.stop, group)
    ) // size
