"""Experts of four-bit floats in blocks with a scale each. All else in such a checkpoint is plain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn

from builtin_plugins.quant_methods.stored.experts import KeptExperts
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.keeping import PlainKeeper, Unaided, keeper_of
from builtin_plugins.quant_methods.stored.layouts import Grouping, ScaledFloats
from builtin_plugins.quant_methods.stored.packing import four_bit_floats, powers_of_two
from core.api import ExpertsMethod, LinearMethod, ModelError, Part
from core.models.layers.linear import PlainLinear

BLOCK: Final = 32
"""Numbers that share a scale."""


class Mxfp4:
    """Decides that experts are stored so, and linear layers outside of them as they are."""

    name = "mxfp4"
    example_config: Final = {"quant_method": "mxfp4"}

    def __init__(self, config: Any = None) -> None:
        if not config:
            raise ModelError(
                "--quantization mxfp4 reads checkpoints that are stored so, and this one's "
                "config.json says nothing of it; "
                "weights are not made smaller here. Leave --quantization out."
            )
        self._unaided = Unaided(self.name)

    def linear(self, prefix: str) -> LinearMethod:
        """Return a method for plain weights."""
        del prefix
        return PlainLinear()

    def experts(self, prefix: str) -> ExpertsMethod:
        """Return a fresh method."""
        del prefix
        return Mxfp4Experts(self._unaided)


class Blocks(StoredFormat):
    """Bytes [rows, columns / 32, 16] of one expert's weight, two numbers each, lower four bits
    first, and exponents of scales.
    """

    suffixes = ("_blocks", "_scales")
    grouping = Grouping(4, BLOCK, is_float=True, has_powers=True)
    stored_bits = 4 + 8 / BLOCK

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> ScaledFloats:
        """Return the rank's part."""
        blocks, scales = (part.rows(tensors[suffix]) for suffix in self.suffixes)
        own = part.columns(blocks, per=BLOCK), part.columns(scales, per=BLOCK)
        return ScaledFloats(four_bit_floats(own[0].flatten(-2)), powers_of_two(own[1]), BLOCK)


class Mxfp4Experts(KeptExperts):
    """All experts' numbers and scales come in two tensors of each matrix, rows of gate and up in
    turn.
    """

    suffixes: tuple[str, ...] = ()
    endings: tuple[str, ...] = Blocks.suffixes

    def __init__(self, unaided: Unaided) -> None:
        super().__init__()
        self._unaided = unaided
        self._found: dict[str, dict[str, torch.Tensor]] = {"gate_up": {}, "down": {}}

    def shape(self, suffix: str, part: Part) -> tuple[int, ...]:
        """Return [experts, out, in / 32, 16] of bytes, or without the last of scales."""
        packed = (part.num_experts, part.out_features, part.in_features // BLOCK, BLOCK // 2)
        return packed if suffix == "_blocks" else packed[:3]

    def create(
        self, layer: nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype
    ) -> None:
        """Register parameters for all experts, by whoever keeps such numbers on the device."""
        whole = Part(pieces=(), columns_in=slice(0, hidden), out_features=width, in_features=hidden)
        self._keeper = keeper_of(Blocks(), self._plain, whole)
        self._keeper.create(layer, num_experts, width, hidden, dtype)
        if isinstance(self._keeper, PlainKeeper):
            for numbers in (width * hidden * 2, width * hidden):
                self._unaided.add(num_experts * numbers, Blocks(), dtype)

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Keep a tensor until its other is there; then unpack one expert at a time, few rows at
        once.
        """
        found = self._found[part.matrix]
        found[suffix] = tensor
        if len(found) < len(self.endings):
            return
        self._found[part.matrix] = {}
        if tensor.is_meta:  # of a model that is only planned
            return
        self._unaided.say()
        for expert in range(part.num_experts):
            own = {ending: whole[expert] for ending, whole in found.items()}
            for rows, layout in Blocks().unpacked(own, part):
                self._keeper.put(layer, rows, layout, part.matrix, expert)

    def finish(self, layer: nn.Module) -> None:
        """Refuse numbers that came without their scales, or scales alone."""
        for matrix, found in self._found.items():
            if found:
                given = ", ".join(found)
                found.clear()
                raise ModelError(
                    f"of the experts' {matrix}, {given} came alone; send blocks and scales "
                    "together."
                )
        super().finish(layer)
