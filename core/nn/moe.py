"""Mixture of experts: a router chooses for each token, the `moe` op computes; nothing is read back to the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from core.nn.weights import WeightMap, empty_parameter, fill, place

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec import MoeSpec
    from core.weight_names import WeightNames


class Moe(nn.Module):
    """Every rank holds a part of each expert's width; outputs are summed over the ranks."""

    def __init__(
        self,
        spec: MoeSpec,
        hidden: int,
        names: WeightNames,
        layer: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self.spec = spec
        self._group, self._ops = context.group, context.ops
        width = self._group.share(spec.width, "expert width")
        self.router = empty_parameter(spec.experts, hidden, dtype=context.dtype)
        self.gate_up = empty_parameter(spec.experts, 2 * width, hidden, dtype=context.dtype)
        self.down = empty_parameter(spec.experts, hidden, width, dtype=context.dtype)
        weights.add(f"{layer}.{names.router}.weight", self.router.shape, lambda tensor: place(self.router, tensor))
        for index in range(spec.experts):
            expert = f"{layer}.{names.expert.format(index)}"
            gate_up, down = self.gate_up.data[index], self.down.data[index]
            for name, target, axis, shape in (
                (names.expert_gate, gate_up[:width], 0, (spec.width, hidden)),
                (names.expert_up, gate_up[width:], 0, (spec.width, hidden)),
                (names.expert_down, down, 1, (hidden, spec.width)),
            ):
                weights.add(f"{expert}.{name}.weight", shape, self._filler(target, axis))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, hidden]."""
        spec = self.spec
        scores = self._ops.linear(x, self.router).float()  # [n, experts]
        scores = scores.softmax(-1) if spec.score == "softmax" else scores.sigmoid()
        shares, experts = scores.topk(spec.top_k, dim=-1)
        if spec.renormalize:
            shares = shares / shares.sum(-1, keepdim=True)
        return self._group.all_reduce(self._ops.moe(x, self.gate_up, self.down, shares, experts, spec.activation))

    def _filler(self, target: torch.Tensor, axis: int) -> Callable[[torch.Tensor], None]:
        return lambda tensor: fill(target, self._group.cut(tensor, axis))
