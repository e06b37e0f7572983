"""Builds the deltas of MoE experts, from factors per expert or stacked ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from builtin_plugins.features.lora.adapter_file import BadAdapter
from builtin_plugins.features.lora.adapter_module import (
    AdapterModule,
    fits_experts,
    stacked_factors,
)
from builtin_plugins.features.lora.deltas import Delta, ExpertFactors, ExpertsDelta
from builtin_plugins.features.lora.peft import PeftConfig
from builtin_plugins.features.lora.target_modules import TargetModule, TargetModules

Tensor = torch.Tensor
Deltas = dict[nn.Module, Delta]


class ExpertBuilder:
    """Builds the deltas of experts for one rank of a model."""

    def __init__(
        self,
        targets: TargetModules,
        dtype: torch.dtype,
        device: str,
        convert: Callable[..., Tensor],
        max_rank: int,
    ) -> None:
        """`convert`: returns a scaled copy of a tensor in `dtype`."""
        self._targets = targets
        self._dtype = dtype
        self._device = device
        self._convert = convert
        self._max_rank = max_rank

    def add(self, deltas: Deltas, target: TargetModule, own: AdapterModule) -> None:
        """Add the factors of one expert's matrix, or of stacked experts."""
        part = target.part
        layer: Any = target.module
        delta = self._delta_of(deltas, layer)
        if part.num_experts:
            a, b = stacked_factors(own, part, self._max_rank)
            delta.parts.setdefault(part.matrix, []).append(self._factors(target, a, b, own.scale))
            return
        a, b = own.factors((part.in_features,), (part.out_features,), self._max_rank)
        listed = delta.parts.setdefault(part.matrix, [])
        found = next((each for each in listed if each.rows == target.rows), None)
        count = 1 + max(each.expert for each in layer.parts.values() if not each.num_experts)
        if found is None or found.a.shape[1] < len(a):
            rank = len(a) if found is None else max(len(a), found.a.shape[1])
            grown = ExpertFactors(
                target.rows,
                torch.zeros(
                    count, rank, _length(part.columns_in), dtype=self._dtype, device=self._device
                ),
                torch.zeros(
                    count, _length(target.rows), rank, dtype=self._dtype, device=self._device
                ),
            )
            if found is not None:
                grown.a[:, : found.a.shape[1]] = found.a
                grown.b[:, :, : found.b.shape[2]] = found.b
                listed.remove(found)
            listed.append(grown)
            found = grown
        found.a[part.expert, : len(a)] = self._convert(part.columns(a, -1))
        found.b[part.expert, :, : len(a)] = self._convert(part.rows(b, -2), own.scale)

    def add_stacked(
        self, deltas: Deltas, module: str, roles: Mapping[str, Any], config: PeftConfig
    ) -> bool:
        """Add factors of stacked experts, which have no name in PEFT (`target_parameters`)."""
        outer = module
        while outer.endswith(".base_layer"):
            outer = outer.removesuffix(".base_layer")
        own = AdapterModule(module, roles, config)
        for target in self._targets.experts(outer):
            part = target.part
            if own.has_factors and fits_experts(own, part):
                a, b = stacked_factors(own, part, self._max_rank)
                delta = self._delta_of(deltas, target.module)
                delta.parts.setdefault(part.matrix, []).append(
                    self._factors(target, a, b, own.scale)
                )
                return True
        return False

    def _factors(self, target: TargetModule, a: Tensor, b: Tensor, scale: float) -> ExpertFactors:
        own = target.part.columns(a, -1), target.part.rows(b, -2)
        return ExpertFactors(target.rows, self._convert(own[0]), self._convert(own[1], scale))

    def _delta_of(self, deltas: Deltas, layer: Any) -> ExpertsDelta:
        if not hasattr(layer.method, "product"):
            raise BadAdapter(
                f"the experts use {type(layer.method).__name__}, which does not support adapters. "
                "Serve the model unquantized, or adapt other modules."
            )
        delta = deltas.setdefault(layer, ExpertsDelta())
        assert isinstance(delta, ExpertsDelta), "other module types are handled above"
        return delta


def _length(piece: slice) -> int:
    return int(piece.stop - piece.start)
