"""The feed-forward part of a layer: gated or plain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from core.models.layers.activation import make_activation
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import optional_norm

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.decoder import MlpSpec
    from core.model_spec.names import WeightNames
    from core.models.layers.weights import WeightMap


class Mlp(nn.Module):
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate."""

    def __init__(
        self,
        spec: MlpSpec,
        hidden: int,
        names: WeightNames,
        layer: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        fused = bool(names.gate_up)
        slices = [Slice("up", spec.width, "" if fused else f"{layer}.{names.up}")]
        if spec.gated:
            slices.insert(0, Slice("gate", spec.width, "" if fused else f"{layer}.{names.gate}"))
        self.up = Linear(
            context,
            weights,
            f"{layer}.{names.gate_up or names.up}",
            hidden,
            slices,
            split="rows",
            bias=spec.bias,
            transposed=names.transposed,
            order=[1, 0] if fused and names.up_first else None,
        )
        self.down = Linear(
            context,
            weights,
            f"{layer}.{names.down}",
            spec.width,
            [Slice("down", hidden)],
            split="columns",
            bias=spec.bias if spec.out_bias is None else spec.out_bias,
            transposed=names.transposed,
        )
        self.activate = make_activation(
            spec.activation,
            gated=spec.gated,
            prefix=f"{layer}.{names.activation}",
            context=context,
            weights=weights,
        )
        self._group = context.group
        self._gate_scale = spec.gate_scale
        self._out_scale = spec.out_scale
        prefix = f"{layer}.{names.mlp_inner}"
        self.inner_norm = optional_norm(spec.inner_norm, spec.width, context, weights, prefix)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, hidden]."""
        x = self.up(x)
        if self._gate_scale != 1.0:
            x[:, self.up.slices["gate"]] *= self._gate_scale
        x = self.activate(x)
        if self.inner_norm is not None:
            x = self._group.cut(self.inner_norm(self._group.all_gather(x)), 1)
        x = self.down(x)
        return x if self._out_scale == 1.0 else x * self._out_scale
