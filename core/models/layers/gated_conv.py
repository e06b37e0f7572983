"""A short convolution between two gates: the mixing layer of LFM2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from core.model_spec.kv import RecurrentState
from core.models.layers.linear import Linear, Slice
from core.models.layers.short_conv import ShortConv

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.recurrent import GatedConvSpec
    from core.models.layers.state import Run, StatePlan, States
    from core.models.layers.weights import WeightMap


class GatedConv(nn.Module):
    """One layer, its channels split over ranks. Its state: the convolution's last inputs."""

    def __init__(
        self,
        spec: GatedConvSpec,
        hidden: int,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        slices = [Slice(name, hidden) for name in ("before", "after", "x")]
        self.inward = Linear(
            context, weights, f"{prefix}.in_proj", hidden, slices, split="rows", bias=spec.bias
        )
        self.conv = ShortConv(
            slices[2:],
            spec.kernel,
            context,
            weights,
            f"{prefix}.conv",
            bias=spec.bias,
            activate=False,
        )
        out = [Slice("out", hidden)]
        self.outward = Linear(
            context, weights, f"{prefix}.out_proj", hidden, out, split="columns", bias=spec.bias
        )
        self.kv_spec = RecurrentState((self.conv.state_part,))
        self.cache: States | None = None

    def forward(self, x: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return [num_tokens, hidden]; states go to the cache."""
        before, after, x = self.inward(x).chunk(3, -1)
        return self.outward(after * plan.compute(self._segments, before * x))  # type: ignore[no-any-return]

    def _segments(self, run: Run, fed: torch.Tensor) -> torch.Tensor:
        assert self.cache is not None, "bind_kv was not called"
        return self.conv(fed, run, self.cache[0])  # type: ignore[no-any-return]
