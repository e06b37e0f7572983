"""Experts in the blocks of their GGUF file: gate, up and down each of one type. Rows are sorted by expert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn

from core.api import ModelError, Part
from core.ops.reference import EXPERTS
from engine_gguf.blocks import Ops, put_blocks, refuse_cuts

_LEAVES: Final = {"w1": "gate", "w3": "up", "w2": "down"}
"""What Mixtral calls them."""


class GgufExperts:
    """Three tensors of all experts."""

    suffixes: tuple[str, ...] = ("weight",)
    endings: tuple[str, ...] = ()

    def __init__(self, ops: Mapping[str, Ops]) -> None:
        """`ops` by the last part of the names of an expert's weights."""
        self._ops = {_LEAVES.get(leaf, leaf.removesuffix("_proj")): each for leaf, each in ops.items()}
        self._sizes: dict[str, tuple[int, int]] = {}

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return nothing: it depends on the type, and `load` looks."""
        del suffix, part
        return None

    def create(self, layer: nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype) -> None:
        """Register `gate`, `up` and `down`. Raises `ModelError` where ranks cut through blocks."""
        del dtype
        if not layer.gated:
            raise ModelError("experts without gates are not read from GGUF files.")
        self._sizes = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
        whole = {part.matrix: part.in_features for part in layer.parts.values()}  # type: ignore[operator,union-attr]
        for name, (rows, across) in self._sizes.items():
            refuse_cuts(self._ops[name].block, whole.get(name, across), across, f"each expert's {name}")
            empty = self._ops[name].empty(rows, across, num_experts)
            layer.register_parameter(name, nn.Parameter(empty, requires_grad=False))

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Put the rank's part of one expert's weight."""
        del suffix
        name = "down" if part.matrix == "down" else "up" if part.target.start else "gate"
        rows = self._sizes[name][0]
        put_blocks(self._ops[name], layer.get_parameter(name).data[part.expert], rows, 0, tensor, part)

    def finish(self, layer: nn.Module) -> None:
        """Nothing to repack."""

    def apply(self, layer: nn.Module, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return what the chosen experts give: each token sums its own results in the order of its choice."""
        top_k = experts.shape[1]
        order = experts.flatten().argsort(stable=True)  # pairs of token and choice, by expert
        counts = torch.bincount(experts.flatten(), minlength=len(layer.gate))  # type: ignore[arg-type]
        acted = self._act(layer, self._gate_up(layer, x[order // top_k], counts))
        outputs = x.new_empty(len(order), self._sizes["down"][0])
        self._ops["down"].grouped(acted, layer.down, counts, outputs)  # type: ignore[arg-type]
        back = torch.empty_like(outputs)
        back[order] = outputs
        chosen = back.view(*experts.shape, -1).float() * shares.float().unsqueeze(-1)
        out = chosen[:, 0]
        for choice in range(1, top_k):  # one after the other: torch sums in an order that depends on the batch
            out = out + chosen[:, choice]
        return out.to(x.dtype)

    def product(self, layer: nn.Module, matrix: str, x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return each row's product with the matrix of its expert."""
        order = experts.argsort(stable=True)
        counts = torch.bincount(experts, minlength=len(layer.gate))  # type: ignore[arg-type]
        if matrix == "gate_up":
            found = self._gate_up(layer, x[order], counts)
        else:
            found = x.new_empty(len(x), self._sizes["down"][0])
            self._ops["down"].grouped(x[order], layer.down, counts, found)  # type: ignore[arg-type]
        out = torch.empty_like(found)
        out[order] = found
        return out

    def _gate_up(self, layer: nn.Module, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        width = self._sizes["gate"][0]
        out = x.new_empty(len(x), 2 * width)
        for name, at in (("gate", 0), ("up", width)):
            self._ops[name].grouped(x, layer.get_parameter(name), counts, out[:, at : at + width])
        return out

    @staticmethod
    def _act(layer: nn.Module, inner: torch.Tensor) -> torch.Tensor:
        name: Any = layer.activation
        op = getattr(layer.ops, f"{name}_and_mul", None)
        out: torch.Tensor = (EXPERTS[name] if op is None else op)(inner)
        return out
