"""Experts in the blocks of their GGUF file: gate, up and down each of one type. Rows are sorted by
expert.

Their weights come expert by expert, or all in one tensor of blocks [experts, rows, ...], gate's
rows before up's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from core.api import Part
from core.models.ops.reference import EXPERTS
from engine_gguf.blocks import Ops, put_blocks, refuse_cuts


class GgufExperts:
    """Two or three tensors of all experts."""

    suffixes: tuple[str, ...] = ("weight",)
    endings: tuple[str, ...] = ("",)

    def __init__(self, ops: Mapping[str, Ops]) -> None:
        """`ops` by "gate", "up" and "down"."""
        self._ops = ops
        self._sizes: dict[str, tuple[int, int]] = {}

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return nothing: it depends on the type, and `load` looks."""
        del suffix, part
        return None

    def create(
        self, layer: nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype
    ) -> None:
        """Register `gate`, `up` and `down`. Raises `ModelError` where ranks cut through blocks."""
        del dtype
        self._sizes = {"up": (width, hidden), "down": (hidden, width)}
        if layer.gated:
            self._sizes = {"gate": (width, hidden), **self._sizes}
        whole = {part.matrix: part.in_features for part in layer.parts.values()}  # type: ignore[operator]
        for name, (rows, across) in self._sizes.items():
            refuse_cuts(
                self._ops[name].block, whole.get(name, across), across, f"each expert's {name}"
            )
            empty = self._ops[name].empty(rows, across, num_experts)
            layer.register_parameter(name, nn.Parameter(empty, requires_grad=False))

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Put the rank's part of one expert's weight, or of all experts'."""
        del suffix
        if not part.num_experts:
            self._put(layer, tensor, part)
            return
        for own in by_expert(part):
            self._put(layer, tensor[own.expert], own)

    def _put(self, layer: nn.Module, tensor: torch.Tensor, part: Part) -> None:
        for source, target in part.pieces:
            name = "down"
            first = 0
            if part.matrix != "down":
                name = "up" if target.start or "gate" not in self._sizes else "gate"
            rows = self._sizes[name][0]
            one = replace(part, pieces=((source, slice(first, first + rows)),))
            put_blocks(
                self._ops[name],
                layer.get_parameter(name).data[part.expert],
                rows,
                first,
                tensor,
                one,
            )

    def finish(self, layer: nn.Module) -> None:
        """Nothing to repack."""

    def apply(
        self, layer: nn.Module, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return what the chosen experts give: each token sums its own results in the order of its
        choice.
        """
        top_k = experts.shape[1]
        order = experts.flatten().argsort(stable=True)  # pairs of token and choice, by expert
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
        for choice in range(
            1, top_k
        ):  # one after the other: torch sums in an order that depends on the batch
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
        out: torch.Tensor = (EXPERTS[name] if op is None else op)(inner)
        return out


def by_expert(part: Part) -> list[Part]:
    """Return the parts of each expert's blocks, of a tensor of all experts whose rows are gate's,
    then up's.

    A plain tensor may have them in turn, and across: blocks never have.
    """
    halves = [target for _, target in part.pieces]
    pieces = part.pieces
    if part.matrix == "gate_up" and len(halves) > 1:
        whole = part.out_features // len(halves)
        width = halves[0].stop - halves[0].start
        first = part.pieces[0][0].start // (part.pieces[0][0].step or 1)
        pieces = tuple(
            (slice(at * whole + first, at * whole + first + width), target)
            for at, target in enumerate(halves)
        )
    own = replace(part, pieces=pieces, num_experts=0, transposed=False)
    return [replace(own, expert=expert) for expert in range(part.num_experts)]
