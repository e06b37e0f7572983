"""One layer of a decoder: attention or a recurrent part, then an MLP or experts, and where norms stand. Knows facts, no other layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.latent_spec import LatentAttentionSpec
from core.model_spec import MoeSpec
from core.nn.attention import Attention
from core.nn.cross_attention import CrossAttention
from core.nn.latent_attention import LatentAttention
from core.nn.layer_input import Beside, LayerInput
from core.nn.mlp import Mlp
from core.nn.moe import Moe
from core.nn.norm import Norm, optional_norm
from core.nn.recurrent import Recurrent, make_recurrent
from core.nn.weights import WeightMap, empty_parameter, place

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec import DecoderSpec, LayerSpec, NormSpec
    from core.nn.rotary import Rotary


class Block(nn.Module):
    """One layer. The stream is `x + residual`: the newest part travels apart, so that adding and norm are one op."""

    def __init__(
        self,
        layer: LayerSpec,
        spec: DecoderSpec,
        prefix: str,
        rotary: Rotary | None,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        names, hidden = spec.names, spec.hidden_size

        def norm(facts: NormSpec | None, name: str) -> Norm | None:
            return optional_norm(facts, hidden, context, weights, f"{prefix}.{name}")

        self.attention_in = norm(layer.attention_in, names.attention_in)
        self.attention: Attention | LatentAttention | None = None
        if isinstance(layer.attention, LatentAttentionSpec):
            self.attention = LatentAttention(layer.attention, hidden, names, prefix, rotary, context, weights)
        elif layer.attention is not None:
            self.attention = Attention(layer.attention, hidden, names, prefix, rotary, context, weights)
        self.recurrent: Recurrent | None = None
        if layer.recurrent is not None:
            self.recurrent = make_recurrent(layer.recurrent, hidden, f"{prefix}.{names.recurrent}", context, weights)
        self.attention_plan = self.recurrent_plan = self.cross_plan = -1
        """Which of the batch's plans are those of attention, recurrent part and cross attention; the last where nothing is cached."""
        self.attention_out = norm(layer.attention_out, names.attention_out)
        self.cross: CrossAttention | None = None
        if layer.cross is not None and spec.encoder is not None:
            most = spec.encoder.max_len or spec.max_positions
            self.cross = CrossAttention(layer.cross, hidden, most, names, prefix, context, weights)
        self.mlp_in = norm(layer.mlp_in, names.mlp_in)
        self.mlp: nn.Module | None = None
        if isinstance(layer.mlp, MoeSpec):
            self.mlp = Moe(layer.mlp, hidden, names, prefix, context, weights)
        elif layer.mlp is not None:
            self.mlp = Mlp(layer.mlp, hidden, names, prefix, context, weights)
        self.mlp_out = norm(layer.mlp_out, names.mlp_out)
        self.late: Moe | None = None
        if layer.late is not None:
            self.late = Moe(layer.late, hidden, names, prefix, context, weights)
        self.made_late: torch.Tensor | None = None
        """What those experts gave in a step, kept for the next layer."""
        self.before: Block | None = None
        self.beside: Beside | None = None
        if layer.beside is not None:
            self.beside = Beside(layer.beside, hidden, names, prefix, context, weights)
        self.own_input: LayerInput | None = None
        if spec.layer_inputs is not None:
            self.own_input = LayerInput(spec.layer_inputs, hidden, names, prefix, context, weights)
        self.scale: nn.Parameter | None
        scale = empty_parameter(1, dtype=context.dtype) if layer.scaled else None
        self.register_parameter("scale", scale)
        if scale is not None:
            weights.add(f"{prefix}.{names.layer_scale}", (1,), lambda tensor: place(scale, tensor))
        self._has_end = self.own_input is not None or scale is not None
        self.source: Block | None = None
        self._mixes = layer.attention is not None or layer.recurrent is not None
        self._parallel, self._norm_sum = layer.parallel, layer.norm_sum
        self._residual_scale, self._normed_stream = layer.residual_scale, layer.normed_stream

    def finish_for(self, other: Block) -> None:
        """Add what the late experts of the layer before gave."""
        object.__setattr__(self, "before", other)  # it is no part of this module

    def attend_to(self, other: Block) -> None:
        """Use another layer's keys and values."""
        assert self.attention is not None, "there is nothing that attends"
        assert other.attention is not None, "there is nothing to attend to"
        object.__setattr__(self, "source", other)  # it is no part of this module
        object.__setattr__(self.attention, "source", other.attention)
        other.attention.is_source = True

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        positions: torch.Tensor,
        plans: Sequence[Any],
        own: torch.Tensor | None = None,
        made: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the two halves of the stream after this layer; `plans` are those of all the batch's caching layers.

        `made` [positions, hidden] is what the encoder made of the inputs of this step, if any.
        """
        if self._normed_stream is not None:
            return self._restreamed(x, positions, plans, *self._normed_stream), None
        if self._norm_sum:
            return self._normed_sums(x, positions, plans, made), None
        if self._mixes:
            inner, residual = join(self.attention_in, x, residual)
            if self._parallel:
                shared = inner if self.mlp_in is None else self.mlp_in(residual)
                x = self._mixed(inner, positions, plans) + self._feed(shared, residual)
                return x, residual
            x = self._mixed(inner, positions, plans)
        if self.cross is not None:
            inner, residual = join(self.cross.norm_in, x, residual)
            x = self.cross(inner, made, plans[self.cross_plan])
            x = x if self.cross.norm_out is None else self.cross.norm_out(x)
        if self.mlp is not None:
            inner, residual = join(self.mlp_in, x, residual)
            x = self._feed(inner, residual)
        assert residual is not None, "a layer has parts"
        return (self._end(x + residual, own), None) if self._has_end else (x, residual)

    def _end(self, x: torch.Tensor, own: torch.Tensor | None) -> torch.Tensor:
        if self.own_input is not None:
            x = self.own_input(x, own)
        return x if self.scale is None else x * self.scale

    def _normed_sums(
        self, x: torch.Tensor, positions: torch.Tensor, plans: Sequence[Any], made: torch.Tensor | None
    ) -> torch.Tensor:
        assert self.attention_out is not None, "norm_sum needs it"
        assert self.mlp_out is not None, "norm_sum needs it"
        assert self.mlp is not None, "norm_sum needs it"
        x = self.attention_out.add(self._mix(x, positions, plans), x)[0]
        if self.cross is not None:
            assert self.cross.norm_out is not None, "norm_sum needs it"
            x = self.cross.norm_out.add(self.cross(x, made, plans[self.cross_plan]), x)[0]
        return self.mlp_out.add(self.mlp(x), x)[0]

    def _restreamed(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        plans: Sequence[Any],
        mixing: tuple[float, float],
        feeding: tuple[float, float],
    ) -> torch.Tensor:
        assert self.attention_in is not None, "normed_stream needs it"
        assert self.mlp_in is not None, "normed_stream needs it"
        assert self.mlp is not None, "normed_stream needs it"
        x = self.attention_in(x)
        x = self.mlp_in(x * mixing[0] + self._mix(x, positions, plans) * mixing[1])
        fed: torch.Tensor = self.mlp(x)
        return x * feeding[0] + fed * feeding[1]

    def _mix(self, x: torch.Tensor, positions: torch.Tensor, plans: Sequence[Any]) -> torch.Tensor:
        """Return what other tokens bring: attention, the recurrent part, or the sum of both."""
        if self.attention is None:
            return self.recurrent(x, plans[self.recurrent_plan])  # type: ignore[misc,no-any-return]
        out: torch.Tensor = self.attention(x, positions, plans[self.attention_plan])
        return out if self.recurrent is None else out + self.recurrent(x, plans[self.recurrent_plan])

    def _mixed(self, x: torch.Tensor, positions: torch.Tensor, plans: Sequence[Any]) -> torch.Tensor:
        out = self._mix(x, positions, plans)
        if self.attention_out is not None:
            out = self.attention_out(out)
        return out if self._residual_scale == 1.0 else out * self._residual_scale

    def _feed(self, x: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mlp(x)  # type: ignore[misc]
        if self.late is not None:
            self.made_late = self.late(x)
        if self.before is not None and self.before.made_late is not None:
            out = out + self.before.made_late
        if self.beside is not None:
            out = self.beside(out, stream)
        if self.mlp_out is not None:
            out = self.mlp_out(out)
        return out if self._residual_scale == 1.0 else out * self._residual_scale


def join(norm: Norm | None, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the halves of the stream; return what the next part reads, and the stream."""
    if residual is None:
        return (x if norm is None else norm(x)), x
    if norm is None:
        total = x + residual
        return total, total
    return norm.add(x, residual)
