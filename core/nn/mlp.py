"""The feed-forward part of a layer: gated or plain."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from core.nn.linear import Linear, Slice

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec import MlpSpec, WeightNames
    from core.nn.weights import WeightMap
    from core.ops.table import OpTable


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
        )
        self.down = Linear(
            context,
            weights,
            f"{layer}.{names.down}",
            spec.width,
            [Slice("down", hidden)],
            split="columns",
            bias=spec.bias,
            transposed=names.transposed,
        )
        self._activate = activation_op(context.ops, spec.activation, gated=spec.gated)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, hidden]."""
        return self.down(self._activate(self.up(x)))  # type: ignore[no-any-return]


def activation_op(ops: OpTable, name: str, *, gated: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the op of an activation's name (one of `core.model_spec.ACTIVATIONS`)."""
    op: Callable[[torch.Tensor], torch.Tensor] = getattr(ops, f"{name}_and_mul" if gated else name)
    return op
