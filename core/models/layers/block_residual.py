"""Residual streams of blocks of layers, which sublayers read by attention (Inkling 2)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from core.models.layers.weights import WeightMap, copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.models.layers.norm import Norm
    from core.models.layers.residual import ForwardContext, ResidualPair, Sublayer

EPS: Final = 1e-6
"""Epsilon of the norm of streams."""


class StreamReader(nn.Module):
    """Sums of normalised streams, weighted by learned queries: one sum per query."""

    def __init__(self, hidden: int, name: str, weights: WeightMap, count: int = 1) -> None:
        super().__init__()
        self.query = empty_parameter(count, hidden, dtype=torch.float32)
        shape = (hidden,) if count == 1 else (count, hidden)
        load = partial(copy_weight, self.query.data.view(shape))
        weights.add(name, shape, load)

    def forward(self, x: torch.Tensor, *blocks: torch.Tensor) -> torch.Tensor:
        """Return [n, count * hidden] of this block's stream and those of earlier ones."""
        streams = torch.stack([*blocks, x], 1).float()
        square = streams.square().mean(-1, keepdim=True)
        streams = streams * torch.rsqrt(square + EPS)
        scores = self.query @ streams.transpose(1, 2) * streams.shape[-1] ** -0.5
        found: torch.Tensor = (scores.softmax(-1) @ streams).flatten(1).to(x.dtype)
        return found


class BlockResidual(nn.Module):
    """The sublayer reads all streams; its output is added to that of its block."""

    def __init__(
        self,
        norms: Sequence[Norm | None],
        reader: StreamReader | None,
        *,
        starts_block: bool = False,
    ) -> None:
        """`norms`: of each input; `reader`: None for the first layer, which reads its input."""
        super().__init__()
        self.norms = nn.ModuleList(norm for norm in norms if norm is not None)
        self.reader = reader
        self._starts_block = starts_block

    def forward(
        self, part: Sublayer, x: torch.Tensor, residual: torch.Tensor | None, step: ForwardContext
    ) -> ResidualPair:
        """Return the stream of the block after the sublayer; the residual is None."""
        assert residual is None, "the previous layer returned a residual"
        count = len(self.norms)
        if self.reader is None:
            inputs = (x,) * count
        else:
            inputs = self.reader(x, *step.blocks).chunk(count, -1)
        inner = [norm(each.contiguous()) for norm, each in zip(self.norms, inputs, strict=True)]
        out = part(torch.cat(inner, -1), x, step)
        if self._starts_block:
            step.blocks.append(x)
            return out, None
        return x + out, None
