"""One layer of a decoder: its parts in order, each with its way of joining the stream.

Knows facts, no other layer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from core.model_spec.decoder import MoeSpec
from core.model_spec.latent import LatentAttentionSpec
from core.models.layers.attention import Attention
from core.models.layers.cross_attention import CrossAttention
from core.models.layers.latent_attention import LatentAttention
from core.models.layers.layer_input import Beside, LayerInput
from core.models.layers.mlp import Mlp
from core.models.layers.moe import Moe
from core.models.layers.norm import Norm, optional_norm
from core.models.layers.recurrent import Recurrent, make_recurrent
from core.models.layers.shared_block import SharedBlock
from core.models.layers.stream import (
    Added,
    Guided,
    Halves,
    Joint,
    NormedStream,
    NormedSum,
    Part,
    Step,
)
from core.models.layers.weights import WeightMap, empty_parameter, place

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.decoder import DecoderSpec, LayerSpec
    from core.model_spec.parts import NormSpec
    from core.models.layers.rotary import Rotary

Attending = Attention | LatentAttention | SharedBlock


class Block(nn.Module):
    """One layer."""

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
        hidden = spec.hidden_size
        within = (spec.names, prefix)
        self.attention = _make_attention(layer, spec, prefix, rotary, context, weights)
        self.recurrent: Recurrent | None = None
        if layer.recurrent is not None:
            name = f"{prefix}.{spec.names.recurrent}"
            self.recurrent = make_recurrent(layer.recurrent, hidden, name, context, weights)
        self.cross: CrossAttention | None = None
        if layer.cross is not None and spec.encoder is not None:
            most = spec.encoder.max_len or spec.max_positions
            self.cross = CrossAttention(layer.cross, hidden, most, *within, context, weights)
        self.mlp: Moe | Mlp | None = None
        if isinstance(layer.mlp, MoeSpec):
            self.mlp = Moe(layer.mlp, hidden, *within, context, weights)
        elif layer.mlp is not None:
            self.mlp = Mlp(layer.mlp, hidden, *within, context, weights)
        self.late = (
            None if layer.late is None else Moe(layer.late, hidden, *within, context, weights)
        )
        self.beside = (
            None
            if layer.beside is None
            else Beside(layer.beside, hidden, *within, context, weights)
        )
        self.own_input: LayerInput | None = None
        if spec.layer_inputs is not None:
            self.own_input = LayerInput(spec.layer_inputs, hidden, *within, context, weights)
        self.scale: nn.Parameter | None
        scale = empty_parameter(1, dtype=context.dtype) if layer.scaled else None
        self.register_parameter("scale", scale)
        if scale is not None:
            weights.add(
                f"{prefix}.{spec.names.layer_scale}", (1,), lambda tensor: place(scale, tensor)
            )
        self.attention_plan = self.recurrent_plan = self.cross_plan = -1
        """Which of a step's plans are those of attention, recurrent part and cross attention."""
        self.source: Block | None = None
        """The layer whose keys and values are attended to."""
        self._has_end = self.own_input is not None or scale is not None
        self._arrange(layer, spec, prefix, context, weights)

    def _arrange(
        self,
        layer: LayerSpec,
        spec: DecoderSpec,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        """Put the parts in order, and say how each joins the stream."""
        names = spec.names

        def norm(facts: NormSpec | None, name: str) -> Norm | None:
            return optional_norm(facts, spec.hidden_size, context, weights, f"{prefix}.{name}")

        before = norm(layer.attention_in, names.attention_in)
        behind = norm(layer.attention_out, names.attention_out)
        mlp_in = norm(layer.mlp_in, names.mlp_in)
        mlp_out = norm(layer.mlp_out, names.mlp_out)
        mixing, feeding = layer.normed_stream or (None, None)
        joint = partial(_joint, sums=layer.norm_sum)
        parts: list[tuple[Joint, Part]] = []
        self.beside_norm: Norm | None = None
        if layer.parallel:
            self.beside_norm = mlp_in
            parts.append((Added(before, None, layer.residual_scale), self._both))
        elif isinstance(self.attention, SharedBlock):
            parts.append((Guided(before, self._guide), self._recur))
        elif self.attention is not None or self.recurrent is not None:
            parts.append((joint(before, behind, layer.residual_scale, factors=mixing), self._mix))
        if self.cross is not None:
            parts.append((joint(self.cross.norm_in, self.cross.norm_out), self._cross))
        if self.mlp is not None and not layer.parallel:
            parts.append(
                (joint(mlp_in, mlp_out, layer.residual_scale, factors=feeding), self._feed)
            )
        self.joints = nn.ModuleList(way for way, _ in parts)
        self._parts = tuple(
            (way.forward, part) for way, part in parts
        )  # a module's call would cost more than it does

    def attend_to(self, other: Block) -> None:
        """Use another layer's keys and values."""
        assert isinstance(self.attention, Attention), "there is nothing that attends"
        assert isinstance(other.attention, Attention), "there is nothing to attend to"
        object.__setattr__(self, "source", other)  # it is no part of this module
        object.__setattr__(self.attention, "source", other.attention)
        other.attention.is_source = True
        theirs = other.attention.params  # both write what is cached, and read what either wrote
        self.attention.params = replace(
            self.attention.params, key_scale=theirs.key_scale, value_scale=theirs.value_scale
        )

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step) -> Halves:
        """Return the two halves of the stream after this layer."""
        for join, part in self._parts:
            x, residual = join(part, x, residual, step)
        return (
            (self._end(x if residual is None else x + residual, step), None)
            if self._has_end
            else (x, residual)
        )

    def _end(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        if self.own_input is not None:
            x = self.own_input(x, step.own)
        return x if self.scale is None else x * self.scale

    def _mix(self, x: torch.Tensor, stream: torch.Tensor, step: Step) -> torch.Tensor:
        """Return what other tokens bring: attention, the recurrent part, or the sum of both."""
        if self.attention is None:
            return self._recur(x, stream, step)
        out: torch.Tensor = self.attention(x, step.positions, step.plans[self.attention_plan])
        return out if self.recurrent is None else out + self._recur(x, stream, step)

    def _recur(self, x: torch.Tensor, stream: torch.Tensor, step: Step) -> torch.Tensor:
        del stream
        return self.recurrent(x, step.plans[self.recurrent_plan])  # type: ignore[misc,no-any-return]

    def _guide(self, x: torch.Tensor, stream: torch.Tensor, step: Step) -> torch.Tensor:
        del stream
        return self.attention(x, step.embedded, step.positions, step.plans[self.attention_plan])  # type: ignore[misc,no-any-return]

    def _cross(self, x: torch.Tensor, stream: torch.Tensor, step: Step) -> torch.Tensor:
        del stream
        return self.cross(x, step.made, step.plans[self.cross_plan])  # type: ignore[misc,no-any-return]

    def _feed(self, x: torch.Tensor, stream: torch.Tensor, step: Step) -> torch.Tensor:
        out: torch.Tensor = self.mlp(x)  # type: ignore[misc]
        before = step.late
        step.late = None if self.late is None else self.late(x)
        if before is not None:
            out = out + before
        return out if self.beside is None else self.beside(out, stream)

    def _both(self, x: torch.Tensor, stream: torch.Tensor, step: Step) -> torch.Tensor:
        fed = x if self.beside_norm is None else self.beside_norm(stream)
        return self._mix(x, stream, step) + self._feed(fed, stream, step)


def _make_attention(
    layer: LayerSpec,
    spec: DecoderSpec,
    prefix: str,
    rotary: Rotary | None,
    context: BuildContext,
    weights: WeightMap,
) -> Attending | None:
    facts = layer.attention
    hidden = spec.hidden_size
    if facts is None:
        return None
    if isinstance(facts, LatentAttentionSpec):
        return LatentAttention(facts, hidden, spec.names, prefix, rotary, context, weights)
    if layer.shared is not None:
        return SharedBlock(layer.shared, facts, hidden, prefix, rotary, context, weights)
    return Attention(facts, hidden, spec.names, prefix, rotary, context, weights)


def _joint(
    norm_in: Norm | None,
    norm_out: Norm | None,
    scale: float = 1.0,
    *,
    sums: bool,
    factors: tuple[float, float] | None = None,
) -> Joint:
    """Return how a part joins the stream; `LayerSpec` has checked that the norms it needs are
    there.
    """
    if factors is not None:
        assert norm_in is not None
        return NormedStream(norm_in, factors)
    if sums:
        assert norm_out is not None
        return NormedSum(norm_out)
    return Added(norm_in, norm_out, scale)
