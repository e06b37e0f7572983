"""Positions as sines and cosines that are added to an embedding: a formula, unless the checkpoint
has stored them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from core.errors import ModelError
from core.models.layers.weights import fill

if TYPE_CHECKING:
    from core.models.layers.weights import WeightMap


def expect_sinusoids(
    table: torch.Tensor, kind: bool | str, prefix: str, weights: WeightMap
) -> None:
    """Fill a table of positions when a load ends, unless the checkpoint has stored one: then that
    is what it learned with.
    """
    stored = False

    def take(tensor: torch.Tensor) -> None:
        nonlocal stored
        if tensor.ndim != 2 or tensor.shape[1] != table.shape[1] or len(tensor) < len(table):
            raise ModelError(
                f"holds positions as {list(tensor.shape)}; at least {list(table.shape)} are "
                "needed. Lower --max-model-len."
            )
        stored = True
        fill(table, tensor[: len(table)])

    def compute() -> None:
        if not stored:
            table.copy_(sinusoids(*table.shape, wide=kind == "wide"))

    weights.add_instead(f"{prefix}.weight", None, take, of=())
    weights.at_end(compute)


def sinusoids(rows: int, size: int, *, wide: bool = False) -> torch.Tensor:
    """Return [rows, size] float32: the sines, then the cosines, of each row's angles.

    Of `half` frequencies the last is 1 / 10000 or, where `wide`, the next after it would be.
    """
    with torch.device("cpu"):
        half = size // 2
        frequencies = torch.exp(
            torch.arange(half) * -(math.log(10_000) / (half if wide else half - 1))
        )
        angles = torch.arange(rows)[:, None] * frequencies
        return torch.cat([angles.sin(), angles.cos(), torch.zeros(rows, size % 2)], dim=1)
