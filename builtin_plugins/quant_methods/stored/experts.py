"""MoE experts with quantized checkpoint weights. Independent of formats and kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from builtin_plugins.quant_methods.stored.activations import InputRounding
from builtin_plugins.quant_methods.stored.backends import (
    DequantizedBackend,
    Formats,
    select_backend,
)
from builtin_plugins.quant_methods.stored.layers import PendingTensors
from core.api import ModelError
from core.models.ops.reference import expert_activation

if TYPE_CHECKING:
    from builtin_plugins.quant_methods.stored.formats import StoredFormat
    from core.model_spec.weight_shard import WeightShard


class BackendExperts:
    """The experts of one layer, all on one backend. A subclass defines how their tensors arrive."""

    suffixes: tuple[str, ...] = ("weight",)

    def __init__(self) -> None:
        self._backend: Any = None
        self._rounding: dict[str, InputRounding] = {}
        """Rounding of the inputs of each matrix, if they are rounded before the product."""

    @property
    def supports_expert_map(self) -> bool:
        """Whether the backend computes nothing for experts of other ranks."""
        return bool(getattr(self._backend, "supports_expert_map", False))

    def use_plain_method(self, plain: Callable[[], Any]) -> None:
        """Set the factory of the device's method for plain experts."""
        self._plain = plain

    def finish(self, layer: nn.Module) -> None:
        """Let the plain method repack its weights."""
        if isinstance(self._backend, DequantizedBackend):
            self._backend.method.finish(layer)

    def apply(
        self, layer: nn.Module, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum of the chosen experts' outputs."""
        if self._rounding:
            return self._apply_rounded(layer, x, shares, experts)
        out: torch.Tensor = self._backend.apply(layer, x, shares, experts)
        return out

    def _apply_rounded(
        self, layer: nn.Module, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return what `apply` does, in two products of rounded inputs."""
        chosen = experts.flatten()
        rows = self._rounding["gate_up"](x).repeat_interleave(experts.shape[1], 0)
        inner = self._backend.product(layer, "gate_up", rows, chosen)
        inner = inner if layer.bias is None else inner + layer.bias[chosen]  # type: ignore[index]
        acted = self._rounding["down"](expert_activation(str(layer.activation))(inner))
        outputs = self._backend.product(layer, "down", acted, chosen)
        parts = outputs.view(*experts.shape, -1).float() * shares.float().unsqueeze(-1)
        out: torch.Tensor = parts[:, 0]
        for choice in range(1, experts.shape[1]):  # torch.sum's order depends on the batch
            out = out + parts[:, choice]
        return out.to(x.dtype)

    def product(
        self, layer: nn.Module, matrix: str, x: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return each row's product with the matrix of its expert."""
        out: torch.Tensor = self._backend.product(layer, matrix, x, experts)
        return out


class StoredExperts(BackendExperts):
    """Experts stored as one set of tensors per expert matrix. Mixed formats are dequantized."""

    def __init__(self, formats: Formats, prefix: str) -> None:
        super().__init__()
        self._formats = formats
        self._prefix = prefix
        self._pending = PendingTensors()
        self.stacked_suffixes: tuple[str, ...] = ("",)
        """Suffixes of a tensor with all experts' weights.

        No quantized format has one. Tools that quantize linear layers only leave such a tensor
        plain, whatever the config says of single experts.
        """
        self._sizes: tuple[Any, ...] = ()
        self._is_filled = False

    def tensor_spec(self, prefix: str) -> Any:
        """Return what describes the tensors of one expert matrix: format or plain method."""
        return self._formats.format_of(prefix) or self._plain()

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return the shape of all experts' plain weights."""
        return shard.shape

    def create(
        self, layer: nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype
    ) -> None:
        """Register parameters for all of `layer.parts`."""
        parts: dict[str, WeightShard] = layer.parts  # type: ignore[assignment]
        stored = self._formats.checked_formats(parts)
        if not parts:  # one plain tensor holds all experts' weights
            own = self._formats.format_of(self._prefix)
            stored = {self._prefix: own if own is not None and own.quantizes_on_load else None}
        kinds: dict[Any, StoredFormat | None] = {
            own and own.layout_spec: own for own in stored.values()
        }
        common = next(iter(kinds.values())) if len(kinds) == 1 else None
        ordered = (
            common is not None and common.layout_spec is not None and common.layout_spec.has_g_idx
        )
        first = next(iter(parts.values()), None)
        self._backend = select_backend(
            None if ordered else common,
            self._plain,
            first,
            [hidden, width],
            rounds_inputs=self._formats.activations.by_kernels,
        )
        self._backend.create(layer, num_experts, width, hidden, dtype)
        self._choose_rounding(list(stored.values()))
        self._sizes = num_experts, width, hidden, dtype
        if isinstance(self._backend, DequantizedBackend):
            for own in stored.values():
                self._formats.fallback.add(
                    width * hidden * (1 if parts else num_experts), own, dtype
                )

    def _choose_rounding(self, stored: list[StoredFormat | None]) -> None:
        """Choose how inputs are rounded: as all matrices specify, or not at all."""
        schemes = {None if own is None else own.activations for own in stored}
        scheme = schemes.pop() if len(schemes) == 1 else None
        for matrix in ("gate_up", "down"):
            rounding = self._formats.activations.rounding_for(scheme, self._backend)
            if rounding is not None:
                self._rounding[matrix] = rounding

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, shard: WeightShard) -> None:
        """Hold a tensor until its matrix is complete, then unpack it."""
        prefix = next(prefix for prefix, own in layer.parts.items() if own is shard)  # type: ignore[union-attr,operator]
        stored = self._formats.format_of(prefix)
        if stored is not None and shard.num_experts:
            stored = stored if stored.quantizes_on_load else None
        if stored is None:
            self._plain_backend(layer).method.load(layer, suffix, tensor, shard)
            return
        if shard.num_experts:
            self._formats.fallback.log_once()
            for expert in range(0 if tensor.is_meta else shard.num_experts):
                one = replace(shard, expert=expert, num_experts=0)
                self._put(layer, stored, {suffix: tensor[expert]}, one)
            return
        if shard.matrix in self._rounding:
            self._rounding[shard.matrix].load(prefix, suffix, tensor)
        tensors = self._pending.add(prefix, stored, suffix, tensor, shard)
        if tensors is not None:
            self._formats.fallback.log_once()
            self._formats.activations.log_once()
            self._put(layer, stored, tensors, shard)

    def _plain_backend(self, layer: nn.Module) -> DequantizedBackend:
        """Return the backend of plain weights.

        It replaces a quantized backend, with its parameters, that has received no tensor.
        """
        if not isinstance(self._backend, DequantizedBackend):
            if self._is_filled:
                raise ModelError(
                    "expert weights arrived both per expert (quantized) and stacked (plain); send "
                    "them in the checkpoint's own layout."
                )
            self._backend = DequantizedBackend(self._plain())
            self._backend.create(layer, *self._sizes)
            self._rounding.clear()
        return self._backend

    def _put(
        self,
        layer: nn.Module,
        stored: StoredFormat,
        tensors: dict[str, torch.Tensor],
        shard: WeightShard,
    ) -> None:
        self._is_filled = True
        for rows, layout in stored.unpack_chunks(tensors, shard):
            self._backend.write_rows(layer, rows, layout, shard.matrix, shard.expert)

    def finish(self, layer: nn.Module) -> None:
        """Reject incomplete matrices and let the plain method repack its weights."""
        self._pending.check_complete()
        for rounding in self._rounding.values():
            rounding.finish()
        super().finish(layer)
