"""Keeps weights as the blocks of their GGUF file, and multiplies by them as they are.

Parts that a layer computes in one may be of different types: neighbours of one type are one weight,
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

from builtin_plugins.quant_methods.stored.layers import StoredLinear
from core.api import EngineConfig, ExpertsMethod, ModelError, Part
from core.models.layers.linear import PlainLinear
from engine_gguf.blocks import Ops, put_blocks, refuse_cuts
from engine_gguf.coded import FORMATS, Coded, CodedExperts
from engine_gguf.experts import GgufExperts
from engine_gguf.in_torch import TorchOps
from engine_gguf.kinds import CODED, KEPT

log = logging.getLogger(__name__)


class Gguf:
    """Decides by the name of a weight: those that the file has in blocks stay so, others are plain."""

    name = "gguf"

    def __init__(self, facts: Any, config: EngineConfig) -> None:
        if not facts:
            raise ModelError(
                "--quantization gguf reads GGUF files, and this checkpoint is none; weights are "
                "not made smaller here. Leave "
                "--quantization out, or give the file."
            )
        self._kinds: Mapping[str, str] = facts.get("blocks") or {}
        self._of_experts: Mapping[str, Mapping[str, str]] = facts.get("experts") or {}
        used = {
            *self._kinds.values(),
            *(kind for own in self._of_experts.values() for kind in own.values()),
        }
        library = load_library()
        if library is None and used & KEPT:
            log.warning(
                "gguf: no kernel of this device multiplies by blocks; each product makes its "
                "weight plain first, and one of a "
                "single row takes 17 to 40 times as long as with a plain checkpoint"
            )
        bits = config.options.get("gguf_activations")
        make: Any = TorchOps if library is None else lambda kind: SuperblockOps(library, kind, bits)
        self._ops: dict[str, Ops] = {kind: make(kind) for kind in sorted(used & KEPT)}
        coded = {name: next(iter(own.values())) for name, own in self._of_experts.items()}
        self._coded = Coded(
            facts, self._kinds, {name: kind for name, kind in coded.items() if kind in CODED}
        )

    def linear(self, prefix: str) -> Any:
        """Return a fresh method."""
        return self._kept(prefix) or PlainLinear()

    def embedding(self, prefix: str) -> Any:
        """Return a fresh method, which a head may be tied to; None for plain rows."""
        return self._kept(prefix)

    def head(self, prefix: str) -> Any:
        """Return a fresh method; None for plain rows."""
        return self._kept(prefix)

    def experts(self, prefix: str) -> ExpertsMethod | None:
        """Return a fresh method; None for plain experts."""
        own = self._of_experts.get(prefix)
        if own is None:
            return None
        if CODED.issuperset(own.values()):
            return CodedExperts(FORMATS[own["up"]], self._coded.unaided)
        return GgufExperts({part: self._ops[kind] for part, kind in own.items()})

    def _kept(self, prefix: str) -> BlockLinear | StoredLinear | None:
        kind = self._kinds.get(prefix)
        if kind is None:
            return None
        return self._coded.linear(prefix) if kind in CODED else BlockLinear(self._kinds, self._ops)


class BlockLinear:
    """Rows in blocks; those of each checkpoint prefix are of one type."""

    suffixes: tuple[str, ...] = ("weight",)

    def __init__(self, kinds: Mapping[str, str], ops: Mapping[str, Ops]) -> None:
        self._kinds = kinds
        self._ops = ops
        self._width = 0
        self._own: list[tuple[Ops, slice, nn.Parameter]] = []

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return nothing: it depends on the prefix, and `load` looks."""
        del suffix, part
        return None

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register `weight_0` and so on, one for neighbours of a type.

        Raises `ModelError` where ranks cut through blocks.
        """
        self._width = in_features
        self._dtype = dtype
        self._rows = out_features
        own: list[tuple[Ops, slice]] = []
        for prefix, part in layer.parts.items():  # type: ignore[operator,union-attr]
            ops = self._ops[self._kinds[prefix]]
            refuse_cuts(ops.block, part.in_features, in_features, prefix)
            # An embedding may have room for more rows than there are.
            rows = part.target if len(layer.parts) > 1 else slice(0, out_features)  # type: ignore[arg-type]
            if own and own[-1][0] is ops and own[-1][1].stop == rows.start:
                rows = slice(own.pop()[1].start, rows.stop)
            own.append((ops, rows))
        for number, (ops, rows) in enumerate(own):
            empty = ops.empty(rows.stop - rows.start, in_features)
            layer.register_parameter(f"weight_{number}", nn.Parameter(empty, requires_grad=False))
            self._own.append((ops, rows, layer.get_parameter(f"weight_{number}")))

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Put the rank's part to its rows."""
        del layer, suffix
        ops, rows, weight = next(
            own for own in self._own if own[1].start <= part.target.start < own[1].stop
        )
        put_blocks(
            ops, weight.data, rows.stop - rows.start, part.target.start - rows.start, tensor, part
        )

    def finish(self, layer: nn.Module) -> None:
        """Nothing to repack."""

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T."""
        del layer
        flat = x if x.dim() == 2 else x.reshape(-1, self._width)
        out = x.new_empty(len(flat), self._rows)
        for ops, rows, weight in self._own:
            ops.linear(flat, weight, out[:, rows])
        return out if x.dim() == 2 else out.view(*x.shape[:-1], self._rows)

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of these numbers."""
        del layer
        ((ops, _, weight),) = self._own
        return ops.rows(weight, self._rows, self._width, ids, self._dtype)
