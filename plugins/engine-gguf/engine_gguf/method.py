"""Stores weights as the blocks of their GGUF file, and multiplies by them.

Parts of a fused layer may have different block types. Adjacent parts of one type are one weight,
which writes its own columns.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from core_kernels.library import load_library
from core_kernels.superblocks import SuperblockOps
from torch import nn

from builtin_plugins.quant_methods.api import StoredLinear
from core.api import EngineConfig, ModelError
from core.model_spec.quant_method import ExpertsMethod
from core.model_spec.weight_shard import WeightShard
from core.models.layers.linear import PlainLinear
from engine_gguf.block_formats import FORMATS, BlockFormatExperts, BlockFormatMethod
from engine_gguf.block_ops import BlockOps, TorchOps, check_shards, write_blocks
from engine_gguf.experts import GgufExperts
from engine_gguf.tensor_types import FORMAT_TYPES, KERNEL_TYPES

log = logging.getLogger(__name__)


class Gguf:
    """Chooses by weight name: weights in blocks stay in blocks, others are plain."""

    name = "gguf"

    def __init__(self, facts: Any, config: EngineConfig) -> None:
        if not facts:
            raise ModelError(
                "--quantization gguf loads GGUF files; this checkpoint is not one. It does not "
                "quantize on the fly. Remove --quantization, or give the file."
            )
        self._kinds: Mapping[str, str] = facts.get("blocks") or {}
        self._of_experts: Mapping[str, Mapping[str, str]] = facts.get("experts") or {}
        used = {
            *self._kinds.values(),
            *(kind for own in self._of_experts.values() for kind in own.values()),
        }
        library = load_library()
        if library is None and used & KERNEL_TYPES:
            log.warning(
                "gguf: no kernel of this device multiplies by blocks; each product dequantizes "
                "its weight, which takes 17 to 40 times as long for a single row as a plain "
                "checkpoint"
            )
        bits = config.options.get("gguf_activations")
        make: Any = TorchOps if library is None else lambda kind: SuperblockOps(library, kind, bits)
        self._ops: dict[str, BlockOps] = {kind: make(kind) for kind in sorted(used & KERNEL_TYPES)}
        by_prefix = {name: next(iter(own.values())) for name, own in self._of_experts.items()}
        self._formats = BlockFormatMethod(
            facts,
            self._kinds,
            {name: kind for name, kind in by_prefix.items() if kind in FORMAT_TYPES},
        )

    def linear(self, prefix: str) -> Any:
        """Return a new linear method."""
        return self._quantized(prefix) or PlainLinear()

    def embedding(self, prefix: str) -> Any:
        """Return a new method, which a tied head may share; None for plain rows."""
        return self._quantized(prefix)

    def head(self, prefix: str) -> Any:
        """Return a new method; None for plain rows."""
        return self._quantized(prefix)

    def experts(self, prefix: str) -> ExpertsMethod | None:
        """Return a new experts method; None for plain experts."""
        own = self._of_experts.get(prefix)
        if own is None:
            return None
        if FORMAT_TYPES.issuperset(own.values()):
            return BlockFormatExperts(FORMATS[own["up"]], self._formats.fallback)
        return GgufExperts({part: self._ops[kind] for part, kind in own.items()})

    def _quantized(self, prefix: str) -> BlockLinear | StoredLinear | None:
        kind = self._kinds.get(prefix)
        if kind is None:
            return None
        if kind in FORMAT_TYPES:
            return self._formats.linear(prefix)
        return BlockLinear(self._kinds, self._ops)


class BlockLinear:
    """Rows in blocks; the rows of each checkpoint prefix have one block type."""

    suffixes: tuple[str, ...] = ("weight",)

    def __init__(self, kinds: Mapping[str, str], ops: Mapping[str, BlockOps]) -> None:
        self._kinds = kinds
        self._ops = ops
        self._width = 0
        self._own: list[tuple[BlockOps, slice, nn.Parameter]] = []

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return None: it depends on the prefix, and `load` checks it."""
        del suffix, shard
        return None

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register `weight_0` and so on, one per run of parts with one type.

        Raises `ModelError` if a shard cuts a block.
        """
        self._width = in_features
        self._dtype = dtype
        self._rows = out_features
        own: list[tuple[BlockOps, slice]] = []
        for prefix, shard in layer.parts.items():  # type: ignore[operator,union-attr]
            ops = self._ops[self._kinds[prefix]]
            check_shards(ops.block, shard.in_features, in_features, prefix)
            # An embedding may be padded.
            rows = shard.target if len(layer.parts) > 1 else slice(0, out_features)  # type: ignore[arg-type]
            if own and own[-1][0] is ops and own[-1][1].stop == rows.start:
                rows = slice(own.pop()[1].start, rows.stop)
            own.append((ops, rows))
        for number, (ops, rows) in enumerate(own):
            empty = ops.empty(rows.stop - rows.start, in_features)
            layer.register_parameter(f"weight_{number}", nn.Parameter(empty, requires_grad=False))
            self._own.append((ops, rows, layer.get_parameter(f"weight_{number}")))

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, shard: WeightShard) -> None:
        """Write this rank's shard to its rows."""
        del layer, suffix
        ops, rows, weight = next(
            own for own in self._own if own[1].start <= shard.target.start < own[1].stop
        )
        write_blocks(
            ops, weight.data, rows.stop - rows.start, shard.target.start - rows.start, tensor, shard
        )

    def finish(self, layer: nn.Module) -> None:
        """There is nothing to repack."""

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T."""
        del layer
        flat = x if x.dim() == 2 else x.reshape(-1, self._width)
        out = x.new_empty(len(flat), self._rows)
        for ops, rows, weight in self._own:
            ops.linear(flat, weight, out[:, rows])
        return out if x.dim() == 2 else out.view(*x.shape[:-1], self._rows)

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows with these ids."""
        del layer
        ((ops, _, weight),) = self._own
        return ops.rows(weight, self._rows, self._width, ids, self._dtype)
