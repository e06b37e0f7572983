"""One decoder or encoder layer: its sublayers in order, each joined to the residual stream."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.model_spec.attention import LatentAttentionSpec, NormSpec
from core.model_spec.compressed import (
    CompressedAttentionSpec,
    ConvolvedAttentionSpec,
    GatedStreamsSpec,
)
from core.model_spec.layer import MoeSpec
from core.model_spec.relative import RelativeAttentionSpec
from core.models.layers.attention import Attention
from core.models.layers.block_residual import BlockResidual, StreamReader
from core.models.layers.compressed_attention import CompressedAttention
from core.models.layers.convolved_attention import ConvolvedAttention
from core.models.layers.cross_attention import CrossAttention
from core.models.layers.embedding import PerLayerInput
from core.models.layers.hyper_connections import GatedStreams, HyperConnection
from core.models.layers.latent_attention import LatentAttention
from core.models.layers.mlp import Mlp
from core.models.layers.moe import Moe, ParallelMoe
from core.models.layers.ngrams import Ngrams
from core.models.layers.norm import Norm, RmsNorm, make_norm, optional_norm
from core.models.layers.recurrent import Recurrent, make_recurrent
from core.models.layers.relative_attention import RelativeAttention
from core.models.layers.residual import (
    AffineResidual,
    ForwardContext,
    GuidedResidual,
    NormedResidual,
    PostNormResidual,
    PreNormResidual,
    ResidualJoin,
    ResidualPair,
    Sublayer,
    add_residual,
)
from core.models.layers.shared_block import SharedBlock
from core.models.layers.weights import WeightMap, assign_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.decoder import DecoderSpec
    from core.model_spec.layer import LayerSpec
    from core.models.layers.positions import Rotary

Attending = (
    Attention
    | LatentAttention
    | CompressedAttention
    | ConvolvedAttention
    | RelativeAttention
    | SharedBlock
)


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
        self.cross = _make_cross(layer, spec, prefix, context, weights)
        self.is_gated = layer.cross is not None and layer.cross.gated
        """Whether tokens without encoder states skip the layer."""
        if self.is_gated:
            self._expect_gates(spec, prefix, context, weights)
        self.mlp = _make_mlp(layer, spec, prefix, context, weights)
        self._reads_step = isinstance(layer.mlp, MoeSpec) and layer.mlp.reads_step
        self.delayed_moe = (
            None
            if layer.delayed_moe is None
            else Moe(layer.delayed_moe, hidden, *within, context, weights)
        )
        self.early_moe: Moe | None = None
        if layer.early_moe is not None:
            self.early_moe = Moe(layer.early_moe, hidden, *within, context, weights)
            prefix_of_norm = f"{prefix}.{spec.names.moe_norm_in}"
            self.early_norm = optional_norm(layer.mlp_in, hidden, context, weights, prefix_of_norm)
        self.parallel_experts = (
            None
            if layer.parallel_experts is None
            else ParallelMoe(layer.parallel_experts, hidden, *within, context, weights)
        )
        self.per_layer_input: PerLayerInput | None = None
        if spec.per_layer_inputs is not None:
            self.per_layer_input = PerLayerInput(
                spec.per_layer_inputs, hidden, *within, context, weights
            )
        self.scale: nn.Parameter | None
        self.register_parameter("scale", None)
        if layer.scaled:
            self._expect_scale(f"{prefix}.{spec.names.layer_scale}", context, weights)
        self.attention_plan = self.recurrent_plan = self.cross_plan = -1
        """Index of the plan of attention, recurrent part and cross attention in a step's plans."""
        self.index_plan = -1
        """Index of the plan of the indexer's keys, or of compressed ones; -1: none of its own."""
        self.source: Block | None = None
        """Layer that owns the keys and values read here; None: this layer."""
        self.entry_norm: Norm | None = None
        """Norm of the residual stream before this layer."""
        self._saved_streams = layer.saved_streams
        self._blend = layer.blend
        self.ngrams: Ngrams | None = None
        self.ngram_plan = -1
        if layer.ngrams is not None:
            name = f"{prefix}.{spec.names.ngrams}"
            streams = spec.stream_width // hidden
            self.ngrams = Ngrams(layer.ngrams, streams, hidden, name, context, weights)
        self._enters = bool(layer.saved_streams or layer.blend or layer.ngrams)
        self._has_end = self.per_layer_input is not None or self.scale is not None
        self._arrange(layer, spec, prefix, context, weights)

    def _expect_scale(self, name: str, context: BuildContext, weights: WeightMap) -> None:
        """Expect the factor of the layer's output."""
        scale = empty_parameter(1, dtype=context.dtype)
        self.register_parameter("scale", scale)
        weights.add(name, (1,), lambda tensor: assign_weight(scale, tensor))

    def _expect_gates(
        self, spec: DecoderSpec, prefix: str, context: BuildContext, weights: WeightMap
    ) -> None:
        """Expect the gates of cross attention and MLP."""
        names = {"cross_gate": spec.names.cross_gate, "mlp_gate": spec.names.cross_mlp_gate}
        for attribute, name in names.items():
            gate = empty_parameter(1, dtype=context.dtype)
            self.register_parameter(attribute, gate)
            weights.add(f"{prefix}.{name}", (1,), partial(assign_weight, gate))

    def _arrange(
        self,
        layer: LayerSpec,
        spec: DecoderSpec,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        """Order the sublayers and choose how each joins the residual stream."""
        names = spec.names

        def norm(facts: NormSpec | None, name: str) -> Norm | None:
            return optional_norm(facts, spec.hidden_size, context, weights, f"{prefix}.{name}")

        apart = getattr(layer.attention, "own_kernels", False)
        before = None if apart else norm(layer.attention_in, names.attention_in)
        after = norm(layer.attention_out, names.attention_out)
        mlp_in = norm(layer.mlp_in, names.mlp_in)
        mlp_out = norm(layer.mlp_out, names.mlp_out)
        hyper = spec.hyper_connections
        usual = hyper is None and not layer.affine_sums and layer.streams is None
        if usual and not (layer.parallel or layer.post_norm or layer.normed_residual):
            _write_for_readers(self, before, mlp_in)
        mixing, feeding = layer.normed_residual or (None, None)
        join = partial(_make_join, sums=layer.post_norm)
        parts: list[
            tuple[ResidualJoin | HyperConnection | GatedStreams | BlockResidual, Sublayer]
        ] = []
        self.parallel_mlp_norm: Norm | None = None
        if isinstance(hyper, GatedStreamsSpec):
            gated = partial(GatedStreams, hyper, spec.hidden_size, context=context, weights=weights)
            parts.append((gated(prefix=f"{prefix}.{names.hyper_attention}"), self._mix))
            parts.append((gated(prefix=f"{prefix}.{names.hyper_mlp}"), self._feed))
        elif hyper is not None:
            connect = partial(
                HyperConnection, hyper, spec.hidden_size, context=context, weights=weights
            )
            parts.append((connect(before, f"{prefix}.{names.hyper_attention}"), self._mix))
            parts.append((connect(mlp_in, f"{prefix}.{names.hyper_mlp}"), self._feed))
        elif layer.streams is not None:
            read = partial(StreamReader, spec.hidden_size, weights=weights)
            norms = [before]
            if apart:
                norms = [norm(layer.attention_in, f"{x}_{names.attention_in}") for x in "qkv"]
            reader = None
            if layer.streams.attention_query:
                reader = read(layer.streams.attention_query, count=len(norms))
            starts = layer.streams.starts_block
            parts.append((BlockResidual(norms, reader, starts_block=starts), self._mix))
            reader = read(layer.streams.mlp_query)
            parts.append((BlockResidual([mlp_in], reader), self._feed))
        elif layer.affine_sums:
            own = partial(make_norm, NormSpec("affine"), spec.hidden_size, context, weights)
            both = ((before, names.attention_sum, self._mix), (mlp_in, names.mlp_sum, self._feed))
            for inner, name, part in both:
                sums = (own(f"{prefix}.{name}.{of}") for of in ("residual", "hidden_states"))
                parts.append((AffineResidual(inner, *sums), part))
        elif layer.parallel:
            self.parallel_mlp_norm = mlp_in
            parts.append((PreNormResidual(before, None, layer.residual_scale), self._both))
        elif isinstance(self.attention, SharedBlock):
            parts.append((GuidedResidual(before, self._guide), self._recur))
        elif self.attention is not None or self.recurrent is not None:
            parts.append((join(before, after, layer.residual_scale, factors=mixing), self._mix))
        if self.cross is not None:
            parts.append((join(self.cross.norm_in, self.cross.norm_out), self._cross))
        if self.mlp is not None and not layer.parallel and usual:
            parts.append((join(mlp_in, mlp_out, layer.residual_scale, factors=feeding), self._feed))
        self.joins = nn.ModuleList(way for way, _ in parts)
        self._parts = tuple(
            (way.forward, part) for way, part in parts
        )  # skips the cost of Module.__call__

    def select_as(self, other: Block) -> None:
        """Attend to the tokens that the indexer of `other` selects."""
        assert isinstance(self.attention, LatentAttention), "this layer has no latent attention"
        assert isinstance(other.attention, LatentAttention), "the source layer has none"
        # Not a submodule.
        object.__setattr__(self.attention, "indexer_source", other.attention.indexer)

    def attend_to(self, other: Block) -> None:
        """Share the keys and values of `other`."""
        kinds = (Attention, LatentAttention)
        assert isinstance(self.attention, kinds), "this layer has no attention"
        assert isinstance(other.attention, kinds), "the source layer has no attention"
        object.__setattr__(self, "source", other)  # not a submodule
        object.__setattr__(self.attention, "source", other.attention)
        other.attention.is_source = True
        theirs = other.attention.params  # both layers use one cache, so one pair of scales
        self.attention.params = replace(
            self.attention.params, key_scale=theirs.key_scale, value_scale=theirs.value_scale
        )

    def again(self) -> Block:
        """Return a layer with the same weights and a KV cache of its own."""
        other = copy(self)
        other._modules = dict(self._modules)
        other.attention = copy(self.attention)
        other._parts = tuple((join, getattr(other, part.__name__)) for join, part in self._parts)
        return other

    def _enter(
        self, x: torch.Tensor, residual: torch.Tensor | None, step: ForwardContext
    ) -> torch.Tensor:
        """Return the residual stream before this layer, normalised or mixed with earlier ones."""
        x = add_residual(self.entry_norm, x, residual)[0]
        if self._saved_streams:  # add_rms_norm may overwrite it
            step.streams |= dict.fromkeys(self._saved_streams, x.clone())
        if self._blend is not None:
            name, share = self._blend
            x = torch.lerp(x, step.streams[name], share)
        if self.ngrams is not None:
            assert step.token_ids is not None, "n-grams are of tokens"
            x = x + self.ngrams(x, step.token_ids, step.plans[self.ngram_plan])
        return x

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, step: ForwardContext
    ) -> ResidualPair:
        """Return the residual pair after this layer."""
        if self.is_gated and step.item_states is None:
            return x, residual
        if self.entry_norm is not None or self._enters:
            x = self._enter(x, residual, step)
            residual = None
        for join, part in self._parts:
            x, residual = join(part, x, residual, step)
        return (
            (self._end(x if residual is None else x + residual, step), None)
            if self._has_end
            else (x, residual)
        )

    def _end(self, x: torch.Tensor, step: ForwardContext) -> torch.Tensor:
        if self.per_layer_input is not None:
            x = self.per_layer_input(x, step.per_layer_input)
        return x if self.scale is None else x * self.scale

    def _mix(self, x: torch.Tensor, stream: torch.Tensor, step: ForwardContext) -> torch.Tensor:
        """Return the output of attention, of the recurrent part, or their sum."""
        if self.early_moe is not None:
            step.delayed_output = self.early_moe(self.early_norm(stream))  # type: ignore[misc]
        if self.attention is None:
            return self._recur(x, stream, step)
        plans = [step.plans[self.attention_plan]]
        if self.index_plan >= 0:
            plans.append(step.plans[self.index_plan])
        out: torch.Tensor = self.attention(x, step.positions, *plans)
        return out if self.recurrent is None else out + self._recur(x, stream, step)

    def _recur(self, x: torch.Tensor, stream: torch.Tensor, step: ForwardContext) -> torch.Tensor:
        del stream
        recurrent: Any = self.recurrent
        out: torch.Tensor = recurrent(x, step.plans[self.recurrent_plan])
        return out

    def _guide(self, x: torch.Tensor, stream: torch.Tensor, step: ForwardContext) -> torch.Tensor:
        del stream
        attention: Any = self.attention
        plan = step.plans[self.attention_plan]
        out: torch.Tensor = attention(x, step.embedded, step.positions, plan)
        return out

    def _cross(self, x: torch.Tensor, stream: torch.Tensor, step: ForwardContext) -> torch.Tensor:
        del stream
        cross: Any = self.cross
        out: torch.Tensor = cross(x, step.encoder_states, step.plans[self.cross_plan])
        return self._gated(out, "cross_gate", "reads", step) if self.is_gated else out

    def _gated(
        self, out: torch.Tensor, gate: str, tokens: str, step: ForwardContext
    ) -> torch.Tensor:
        """Return a gated output, which is 0 for other tokens (the backend may return NaN there)."""
        counts: torch.Tensor = getattr(step.item_states, tokens)
        return torch.where(counts, out * self.get_parameter(gate).tanh(), 0)

    def _feed(self, x: torch.Tensor, stream: torch.Tensor, step: ForwardContext) -> torch.Tensor:
        mlp: Any = self.mlp
        out: torch.Tensor = mlp(x, step=step) if self._reads_step else mlp(x)
        if self.is_gated:
            return self._gated(out, "mlp_gate", "feeds", step)
        if isinstance(self.attention, RelativeAttention):
            out = self.attention.mlp_conv(
                out, self.attention.recent.cache, step.plans[self.index_plan]
            )
        before = step.delayed_output
        step.delayed_output = None if self.delayed_moe is None else self.delayed_moe(x)
        if before is not None:
            out = out + before
        return out if self.parallel_experts is None else self.parallel_experts(out, stream)

    def _both(self, x: torch.Tensor, stream: torch.Tensor, step: ForwardContext) -> torch.Tensor:
        fed = x if self.parallel_mlp_norm is None else self.parallel_mlp_norm(stream)
        return self._mix(x, stream, step) + self._feed(fed, stream, step)


def _write_for_readers(block: Block, attention_in: Norm | None, mlp_in: Norm | None) -> None:
    """Let norms quantize their outputs where a single layer reads them."""
    attention = block.attention
    if isinstance(attention, Attention) and isinstance(attention_in, RmsNorm):
        others = (attention.gate, attention.indexer, block.recurrent)
        alone = all(part is None for part in others)
        if alone and attention.spec.in_scale == 1.0:
            attention_in.write_for(attention.qkv)
    if isinstance(block.mlp, Mlp) and isinstance(mlp_in, RmsNorm) and block.delayed_moe is None:
        mlp_in.write_for(block.mlp.up)


def _make_cross(
    layer: LayerSpec, spec: DecoderSpec, prefix: str, context: BuildContext, weights: WeightMap
) -> CrossAttention | None:
    """Return the cross attention to the states of the encoder, or of a tower's items."""
    if layer.cross is None:
        return None
    if spec.encoder is not None:
        max_len = spec.encoder.max_len or spec.max_positions
    else:
        assert spec.tower is not None, "cross attention needs an encoder or a tower"
        max_len = spec.tower.facts.max_cross_positions
    hidden = spec.hidden_size
    limits = (max_len, spec.encoder is None)
    return CrossAttention(layer.cross, hidden, limits, spec.names, prefix, context, weights)


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
        if not spec.selects_tokens(layer):
            facts = replace(facts, indexer=None)
        return LatentAttention(facts, hidden, spec.names, prefix, rotary, context, weights)
    if isinstance(facts, CompressedAttentionSpec):
        assert rotary is not None, "`CompressedAttentionSpec` has one"
        name = f"{prefix}.{spec.names.compressed}"
        return CompressedAttention(facts, hidden, name, rotary, context, weights)
    if isinstance(facts, ConvolvedAttentionSpec):
        assert rotary is not None, "`ConvolvedAttentionSpec` has one"
        name = f"{prefix}.{spec.names.convolved}"
        return ConvolvedAttention(facts, hidden, name, rotary, context, weights)
    if isinstance(facts, RelativeAttentionSpec):
        return RelativeAttention(facts, hidden, prefix, context, weights)
    if layer.shared is not None:
        return SharedBlock(layer.shared, facts, hidden, prefix, rotary, context, weights)
    if not spec.selects_tokens(layer):
        facts = replace(facts, indexer=None)
    return Attention(facts, hidden, spec.names, prefix, rotary, context, weights)


def _make_mlp(
    layer: LayerSpec, spec: DecoderSpec, prefix: str, context: BuildContext, weights: WeightMap
) -> Moe | Mlp | None:
    facts = layer.mlp
    if facts is None:
        return None
    if isinstance(facts, MoeSpec):
        return Moe(facts, spec.hidden_size, spec.names, prefix, context, weights)
    return Mlp(facts, spec.hidden_size, spec.names, prefix, context, weights)


def _make_join(
    norm_in: Norm | None,
    norm_out: Norm | None,
    scale: float = 1.0,
    *,
    sums: bool,
    factors: tuple[float, float] | None = None,
) -> ResidualJoin:
    """Return how a sublayer joins the residual stream. `LayerSpec` has validated the norms."""
    if factors is not None:
        assert norm_in is not None
        return NormedResidual(norm_in, factors)
    if sums:
        assert norm_out is not None
        return PostNormResidual(norm_out)
    return PreNormResidual(norm_in, norm_out, scale)
