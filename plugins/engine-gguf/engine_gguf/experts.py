"""Experts in GGUF blocks: gate, up and down each of one type. Rows are sorted by expert.

Weights arrive per expert, or stacked as blocks [experts, rows, ...] with gate rows before up rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from core.model_spec.weight_shard import WeightShard
from core.models.ops.reference import expert_activation
from engine_gguf.block_ops import BlockOps, check_shards, write_blocks


class GgufExperts:
    """Two or three tensors of all experts."""

    suffixes: tuple[str, ...] = ("weight",)
    stacked_suffixes: tuple[str, ...] = ("",)

    def __init__(self, ops: Mapping[str, BlockOps]) -> None:
        """`ops` by "gate", "up" and "down"."""
        self._ops = ops
        self._sizes: dict[str, tuple[int, int]] = {}

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return None: it depends on the block type, and `load` checks it."""
        del suffix, shard
        return None

    def create(
        self, layer: nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype
    ) -> None:
        """Register `gate`, `up` and `down`. Raises `ModelError` if a shard cuts a block."""
        del dtype
        self._sizes = {"up": (width, hidden), "down": (hidden, width)}
        if layer.gated:
            self._sizes = {"gate": (width, hidden), **self._sizes}
        whole = {shard.matrix: shard.in_features for shard in layer.parts.values()}  # type: ignore[operator]
        for name, (rows, across) in self._sizes.items():
            check_shards(
                self._ops[name].block, whole.get(name, across), across, f"each expert's {name}"
            )
            empty = self._ops[name].empty(rows, across, num_experts)
            layer.register_parameter(name, nn.Parameter(empty, requires_grad=False))

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, shard: WeightShard) -> None:
        """Write this rank's shard of one expert's weight, or of all experts'."""
        del suffix
        if not shard.num_experts:
            self._put(layer, tensor, shard)
            return
        for own in split_experts(shard):
            self._put(layer, tensor[own.expert], own)

    def _put(self, layer: nn.Module, tensor: torch.Tensor, shard: WeightShard) -> None:
        for source, target in shard.pieces:
            name = "down"
            first = 0
            if shard.matrix != "down":
                name = "up" if target.start or "gate" not in self._sizes else "gate"
            rows = self._sizes[name][0]
            one = replace(shard, pieces=((source, slice(first, first + rows)),))
            write_blocks(
                self._ops[name],
                layer.get_parameter(name).data[shard.expert],
                rows,
                first,
                tensor,
                one,
            )

    def finish(self, layer: nn.Module) -> None:
        """There is nothing to repack."""

    def apply(
        self, layer: nn.Module, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum of the chosen experts' outputs, in order of choice."""
        top_k = experts.shape[1]
        order = experts.flatten().argsort(stable=True)  # (token, choice) pairs by expert
        counts = torch.bincount(experts.flatten(), minlength=len(layer.up))  # type: ignore[arg-type]
        inner = self._gate_up(layer, x[order // top_k], counts)
        if layer.bias is not None:
            inner += layer.bias.repeat_interleave(counts, 0)  # type: ignore[operator]
        acted = self._act(layer, inner)
        outputs = x.new_empty(len(order), self._sizes["down"][0])
        self._ops["down"].grouped(acted, layer.down, counts, outputs)  # type: ignore[arg-type]
        back = torch.empty_like(outputs)
        back[order] = outputs
        chosen = back.view(*experts.shape, -1).float() * shares.float().unsqueeze(-1)
        out = chosen[:, 0]
        # torch.sum adds in an order that depends on the batch.
        for choice in range(1, top_k):
            out = out + chosen[:, choice]
        return out.to(x.dtype)

    def product(
        self, layer: nn.Module, matrix: str, x: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return each row's product with the matrix of its expert."""
        order = experts.argsort(stable=True)
        counts = torch.bincount(experts, minlength=len(layer.up))  # type: ignore[arg-type]
        if matrix == "gate_up":
            found = self._gate_up(layer, x[order], counts)
        else:
            found = x.new_empty(len(x), self._sizes["down"][0])
            self._ops["down"].grouped(x[order], layer.down, counts, found)  # type: ignore[arg-type]
        out = torch.empty_like(found)
        out[order] = found
        return out

    def _gate_up(self, layer: nn.Module, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        width = self._sizes["up"][0]
        names = [name for name in self._sizes if name != "down"]
        out = x.new_empty(len(x), len(names) * width)
        for at, name in enumerate(names):
            own = out[:, at * width : (at + 1) * width]
            self._ops[name].grouped(x, layer.get_parameter(name), counts, own)
        return out

    @staticmethod
    def _act(layer: nn.Module, inner: torch.Tensor) -> torch.Tensor:
        name: Any = layer.activation
        op = getattr(layer.ops, f"{name}_and_mul", None)
        out: torch.Tensor = (expert_activation(name) if op is None else op)(inner)
        return out


def split_experts(shard: WeightShard) -> list[WeightShard]:
    """Return one part per expert of stacked blocks, with gate rows before up rows.

    A plain tensor may interleave or transpose them; blocks never do.
    """
    halves = [target for _, target in shard.pieces]
    pieces = shard.pieces
    if shard.matrix == "gate_up" and len(halves) > 1:
        whole = shard.out_features // len(halves)
        width = halves[0].stop - halves[0].start
        first = shard.pieces[0][0].start // (shard.pieces[0][0].step or 1)
        pieces = tuple(
            (slice(at * whole + first, at * whole + first + width), target)
            for at, target in enumerate(halves)
        )
    own = replace(shard, pieces=pieces, num_experts=0, transposed=False)
    return [replace(own, expert=expert) for expert in range(shard.num_experts)]
