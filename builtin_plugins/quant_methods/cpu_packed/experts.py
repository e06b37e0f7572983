"""Experts packed on load. Rows are sorted by expert; each expert multiplies its own."""

from __future__ import annotations

import torch
from core_kernels.packed import PackedOps
from torch import nn

from core.model_spec.weight_shard import WeightShard
from core.models.layers.weights import refuse_integers
from core.models.ops.reference import expert_activation


class PackedExperts:
    """Two tensors of all experts: gate_up and down."""

    suffixes: tuple[str, ...] = ("weight",)
    stacked_suffixes: tuple[str, ...] = ("",)
    supports_expert_map = True

    def __init__(self, ops: PackedOps) -> None:
        self._ops = ops
        self._rows: dict[str, int] = {}

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return the shape of one expert's weight, or of all experts'."""
        return shard.shape if suffix in ("weight", "") else None

    def create(
        self, layer: nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype
    ) -> None:
        """Register both packed tensors. Without gates, gate_up has half as many rows."""
        sizes = {"gate_up": ((1 + bool(layer.gated)) * width, hidden), "down": (hidden, width)}
        for name, (rows, across) in sizes.items():
            self._rows[name] = rows
            empty = self._ops.empty(rows, across, dtype, num_experts)
            layer.register_parameter(name, nn.Parameter(empty, requires_grad=False))

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, shard: WeightShard) -> None:
        """Pack this rank's shard of one expert's weight, or of all experts'."""
        del suffix
        refuse_integers(tensor)
        weight = layer.get_parameter(shard.matrix).data
        for rows, own in shard.plain(tensor):
            for expert, matrix in enumerate(own) if shard.num_experts else [(shard.expert, own)]:
                self._ops.pack(weight[expert], self._rows[shard.matrix], rows.start, matrix)

    def finish(self, layer: nn.Module) -> None:
        """There is nothing to repack."""

    def apply(
        self, layer: nn.Module, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum of the chosen experts' outputs, in order of choice."""
        top_k = experts.shape[1]
        order = experts.flatten().argsort(stable=True)  # (token, choice) pairs by expert
        bias = layer.bias
        is_partial = getattr(layer, "expert_map", None) is not None
        by_expert = experts.flatten()[order] if is_partial or bias is not None else order
        inner = self._ops.grouped(x[order // top_k], layer.gate_up, self._rows["gate_up"], experts)  # type: ignore[arg-type]
        if bias is not None:
            inner = inner + bias[by_expert.clamp(max=len(bias) - 1)]  # type: ignore[arg-type,index]
        acted = self._act(layer, inner)
        outputs = self._ops.grouped(acted, layer.down, self._rows["down"], experts)  # type: ignore[arg-type]
        if is_partial:  # no product was written for experts of other ranks
            is_other = by_expert.eq(len(layer.down))  # type: ignore[arg-type]
            outputs.masked_fill_(is_other[:, None], 0.0)
        back = torch.empty_like(outputs)
        back[order] = outputs
        chosen = back.view(*experts.shape, self._rows["down"]).float() * shares.float().unsqueeze(
            -1
        )
        out = chosen[:, 0]
        for choice in range(1, top_k):  # torch.sum adds in an order that depends on the batch
            out = out + chosen[:, choice]
        return out.to(x.dtype)

    def product(
        self, layer: nn.Module, matrix: str, x: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return each row's product with the matrix of its expert."""
        order = experts.argsort(stable=True)
        found = self._ops.grouped(
            x[order], layer.get_parameter(matrix), self._rows[matrix], experts
        )
        out = torch.empty_like(found)
        out[order] = found
        return out

    @staticmethod
    def _act(layer: nn.Module, inner: torch.Tensor) -> torch.Tensor:
        name = str(layer.activation)
        op = getattr(layer.ops, f"{name}_and_mul", None)
        out: torch.Tensor = (expert_activation(name) if op is None else op)(inner)
        return out
