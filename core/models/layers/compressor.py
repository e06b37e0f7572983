"""Compressed keys of DeepSeek V4: sums over several tokens, weighted by learned scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import make_norm
from core.models.layers.weights import WeightMap, copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.attention import NormSpec


class Compressor(nn.Module):
    """Sums the vectors of `rate` tokens, and where sums overlap those of the `rate` tokens before.

    With overlap a token has two vectors: one for its own sum, and one for the next.
    """

    def __init__(
        self,
        sizes: tuple[int, int],
        rate: int,
        norm: NormSpec,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
        *,
        overlaps: bool,
    ) -> None:
        """`sizes`: of the layer's input and of a sum."""
        super().__init__()
        hidden, size = sizes
        self._size = size
        self._rate = rate
        self._overlaps = overlaps
        width = size * (1 + overlaps)
        self.row_size = 2 * width
        """Elements cached per token: vectors and scores."""
        parts = [Slice("vector", width, f"{prefix}.wkv"), Slice("score", width, f"{prefix}.wgate")]
        self.project = Linear(context, weights, f"{prefix}.wkv", hidden, parts)
        self.position_bias = empty_parameter(rate, width, dtype=torch.float32)
        target = self.position_bias.data
        weights.add(f"{prefix}.ape", target.shape, lambda tensor: copy_weight(target, tensor))
        self.norm = make_norm(norm, size, context, weights, f"{prefix}.norm")

    @property
    def span(self) -> int:
        """Tokens of one sum."""
        return self._rate * (1 + self._overlaps)

    def forward(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return normalised sums [n, size] of rows [n, span, row_size].

        `positions` [n] are those of the last token of each sum.
        """
        vectors, scores = rows.float().chunk(2, -1)
        if self._overlaps:
            rate = self._rate
            size = self._size
            scores = scores + self.position_bias.repeat(2, 1)
            is_first = (positions < rate)[:, None, None]
            before = scores[:, :rate, :size].masked_fill(is_first, float("-inf"))
            scores = torch.cat([before, scores[:, rate:, size:]], dim=1)
            vectors = torch.cat([vectors[:, :rate, :size], vectors[:, rate:, size:]], dim=1)
        else:
            scores = scores + self.position_bias
        total = (vectors * scores.softmax(1)).sum(1)
        return self.norm(total.to(rows.dtype))  # type: ignore[no-any-return]
