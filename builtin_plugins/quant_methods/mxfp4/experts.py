"""MXFP4 experts in blocks with one scale each. Everything else in such a checkpoint is plain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn

from builtin_plugins.quant_methods.stored.backends import (
    DequantizedBackend,
    DequantizedFallback,
    select_backend,
)
from builtin_plugins.quant_methods.stored.experts import BackendExperts
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.layouts import LayoutSpec, ScaledFloats
from builtin_plugins.quant_methods.stored.packing import e8m0_to_float, unpack_fp4
from core.api import ModelError
from core.model_spec.quant_method import ExpertsMethod, LinearMethod
from core.model_spec.weight_shard import WeightShard
from core.models.layers.linear import PlainLinear

BLOCK: Final = 32
"""Numbers per scale."""


class Mxfp4:
    """Quantizes experts; linear layers stay plain."""

    name = "mxfp4"
    example_config: Final = {"quant_method": "mxfp4"}

    def __init__(self, config: Any = None) -> None:
        if not config:
            raise ModelError(
                "--quantization mxfp4 loads MXFP4 checkpoints; this one's config.json has no "
                "quantization_config. It does not quantize on the fly. Remove --quantization."
            )
        self._fallback = DequantizedFallback(self.name)

    def linear(self, prefix: str) -> LinearMethod:
        """Return the method for plain weights."""
        del prefix
        return PlainLinear()

    def experts(self, prefix: str) -> ExpertsMethod:
        """Return a new experts method."""
        del prefix
        return Mxfp4Experts(self._fallback)


class Mxfp4Format(StoredFormat):
    """Bytes [rows, columns / 32, 16] with two numbers each, and scale exponents."""

    suffixes = ("_blocks", "_scales")
    layout_spec = LayoutSpec(4, BLOCK, is_float=True, has_e8m0_scales=True)
    bits_per_weight = 4 + 8 / BLOCK

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> ScaledFloats:
        """Return this rank's shard."""
        blocks, scales = (shard.rows(tensors[suffix]) for suffix in self.suffixes)
        own = shard.columns(blocks, per=BLOCK), shard.columns(scales, per=BLOCK)
        return ScaledFloats(unpack_fp4(own[0].flatten(-2)), e8m0_to_float(own[1]), BLOCK)


class Mxfp4Experts(BackendExperts):
    """Stacked experts: numbers and scales per matrix, with interleaved gate and up rows."""

    suffixes: tuple[str, ...] = ()
    stacked_suffixes: tuple[str, ...] = Mxfp4Format.suffixes

    def __init__(self, fallback: DequantizedFallback) -> None:
        super().__init__()
        self._fallback = fallback
        self._found: dict[str, dict[str, torch.Tensor]] = {"gate_up": {}, "down": {}}

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...]:
        """Return [experts, out, in / 32, 16] of the bytes; scales lack the last axis."""
        packed = (shard.num_experts, shard.out_features, shard.in_features // BLOCK, BLOCK // 2)
        return packed if suffix == "_blocks" else packed[:3]

    def create(
        self, layer: nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype
    ) -> None:
        """Register parameters for all experts on the device's backend."""
        whole = WeightShard(
            pieces=(), columns_in=slice(0, hidden), out_features=width, in_features=hidden
        )
        self._backend = select_backend(Mxfp4Format(), self._plain, whole)
        self._backend.create(layer, num_experts, width, hidden, dtype)
        if isinstance(self._backend, DequantizedBackend):
            for numbers in (width * hidden * 2, width * hidden):
                self._fallback.add(num_experts * numbers, Mxfp4Format(), dtype)

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, shard: WeightShard) -> None:
        """Hold a tensor until its counterpart arrives, then unpack expert by expert."""
        found = self._found[shard.matrix]
        found[suffix] = tensor
        if len(found) < len(self.stacked_suffixes):
            return
        self._found[shard.matrix] = {}
        if tensor.is_meta:  # a planned model
            return
        self._fallback.log_once()
        for expert in range(shard.num_experts):
            own = {ending: whole[expert] for ending, whole in found.items()}
            for rows, layout in Mxfp4Format().unpack_chunks(own, shard):
                self._backend.write_rows(layer, rows, layout, shard.matrix, expert)

    def finish(self, layer: nn.Module) -> None:
        """Reject numbers without scales and scales without numbers."""
        for matrix, found in self._found.items():
            if found:
                given = ", ".join(found)
                found.clear()
                raise ModelError(
                    f"the experts' {matrix} arrived with {given} only; send blocks and scales "
                    "together."
                )
        super().finish(layer)
