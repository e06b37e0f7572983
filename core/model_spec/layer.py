"""One decoder or encoder layer as data: attention, recurrent part, MLP or experts, and norms.

Knows no torch, no file, no model by name. A new kind of layer is a new spec type, not a flag.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

from core.errors import ModelError
from core.model_spec.attention import AttentionSpec, LatentAttentionSpec, NormSpec
from core.model_spec.compressed import (
    CompressedAttentionSpec,
    ConvolvedAttentionSpec,
    RouterMlpSpec,
)
from core.model_spec.ngrams import NgramSpec
from core.model_spec.recurrent import RecurrentSpec
from core.model_spec.relative import BlockStreamsSpec, RelativeAttentionSpec

AnyAttentionSpec = (
    AttentionSpec
    | LatentAttentionSpec
    | CompressedAttentionSpec
    | ConvolvedAttentionSpec
    | RelativeAttentionSpec
)
UNGATED: Final = ("silu", "gelu", "gelu_tanh", "relu", "relu2")
"""Activations of experts without gates."""
SWIGLU_CLAMPS: Final = (1.702, 7.0)
"""Factor in the sigmoid and bound of `swiglu_clamped` where a model has no others."""
ACTIVATIONS: Final = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu", "swiglu_clamped")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpSpec:
    """Feed-forward part of a layer: two or three projections and an activation."""

    width: int
    activation: str = "silu"
    gated: bool = True
    bias: bool = False
    out_bias: bool | None = None
    """Bias of the down projection; None: as `bias`."""
    inner_norm: NormSpec | None = None
    """Norm of the activation, before the down projection."""
    gate_scale: float = 1.0
    """Factor on the gate, before the activation."""
    limit: float | None = None
    """Bound of the gate (above) and of the up projection (both sides); None: none."""
    out_scale: float = 1.0
    learned_scale: bool = False
    """Whether a learned scalar multiplies the output."""

    def __post_init__(self) -> None:
        check_activation(self.activation)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """Mixture of experts: a router and `experts` MLPs of `width`."""

    experts: int
    top_k: int
    width: int
    activation: str = "silu"
    score: Literal["softmax", "sigmoid", "sqrt_softplus", "sparsemixer"] = "softmax"
    renormalize: bool = True
    """Whether the weights of the chosen experts are normalised to sum to 1."""
    scale: float = 1.0
    """Factor on the expert weights, after normalisation (routed_scaling_factor)."""
    jitter: float = 0.01
    """Jitter threshold of sparsemixer."""
    correction_bias: bool = False
    """Whether a learned bias per expert is added to the scores for the choice only."""
    num_hashed_tokens: int = 0
    """Rows of a stored table with the experts of each token id; 0: scores choose the experts."""
    groups: int = 1
    """Expert groups (n_group); a token chooses experts from its best `topk_groups` groups."""
    topk_groups: int = 1
    group_top_k: int = 2
    """Number of best scores summed to rank a group."""
    outside_score: float = -math.inf
    """Score for the choice of experts outside of the best groups."""
    zero_experts: int = 0
    """Number of additional identity experts, which return their input."""
    skips: bool = False
    """Whether the router has one more expert, which returns 0."""
    router_mlp: RouterMlpSpec | None = None
    """MLP that gives the router logits; None: one product."""
    router_fp32: bool = False
    """Whether router logits are computed in float32."""
    router_bias: bool = False
    router_norm: NormSpec | None = None
    """Norm of the router input."""
    router_scale: float = 1.0
    """Factor on the router logits."""
    expert_scale: bool = False
    """Whether a learned factor per expert multiplies its weight."""
    bias: bool = False
    """Whether the experts' projections have biases."""
    router_weight_on_input: bool = False
    """Whether expert weights multiply the expert's input instead of its output."""
    gated: bool = True
    """Whether experts have a gate projection."""
    latent: int = 0
    """Latent width of expert inputs and outputs, with projections to and from it; 0: none."""
    latent_bias: bool = False
    """Whether the latent projections have biases."""
    shared: MlpSpec | None = None
    """Shared expert, which runs on every token; None: none."""
    shared_expert_gate: bool = False
    """Whether the shared expert's output is multiplied by the sigmoid of a gate projection."""

    num_always: int = 0
    """Number of further experts that every token uses; the router weighs them with the chosen ones.
    """
    learned_scale: bool = False
    """Whether a learned scalar multiplies the expert weights."""
    limit: float | None = None
    """Bound of the experts' gate (above) and up projection (both sides); None: none."""
    softcaps: tuple[float, float] | None = None
    """Soft bounds of the gate as a factor and of the up projection; None: none."""
    clamps: tuple[float, float] | None = None
    """Factor in the sigmoid and bound of `swiglu_clamped`; None: `SWIGLU_CLAMPS`."""
    placement: Literal["", "linear", "round_robin"] = ""
    """Expert parallelism: whole experts on each tensor-parallel rank, consecutive ones or every
    n-th; empty: each rank has a part of every expert's width.
    """

    def __post_init__(self) -> None:
        check_activation(self.activation)
        if self.experts % self.groups or not 1 <= self.topk_groups <= self.groups:
            raise ModelError(
                f"n_group={self.groups} must divide num_experts={self.experts} and "
                f"topk_group={self.topk_groups} must be between 1 and n_group."
            )
        if not self.gated and self.activation not in UNGATED:
            raise ModelError(
                f"activation of experts without gates: got {self.activation}; expected one of "
                f"{', '.join(UNGATED)}. Restore the model's own config.json."
            )
        if self.score == "sparsemixer" and self.top_k != 2:
            raise ModelError(
                f"num_experts_per_tok: got {self.top_k}; expected 2, which sparsemixer chooses. "
                "Restore the model's own config.json."
            )
        if not 1 <= self.top_k <= self.experts + self.zero_experts + self.skips:
            raise ModelError(
                f"num_experts_per_tok: got {self.top_k}; expected 1 to {self.experts} experts."
            )

    @property
    def reads_step(self) -> bool:
        """Whether the router reads token ids, or what the router of an earlier layer made."""
        return self.num_hashed_tokens > 0 or self.router_mlp is not None

    def experts_of(self, rank: int, ranks: int) -> range:
        """Return the experts that a tensor-parallel rank holds, whole or in part.

        Of numbers that do not divide, the first ranks hold one expert more.
        """
        if not self.placement:
            return range(self.experts)
        if self.placement == "round_robin":
            return range(rank, self.experts, ranks)
        each, more = divmod(self.experts, ranks)
        start = rank * each + min(rank, more)
        return range(start, start + each + (rank < more))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelExpertsSpec:
    """Experts next to a layer's dense MLP; both outputs are normalised and added."""

    moe: MoeSpec
    norm: NormSpec
    """Norms of the experts' input, the experts' output and the MLP's output, each with own weights.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerInputSpec:
    """Per-layer embeddings: each layer adds its own gated token embedding after its MLP."""

    size: int
    vocab_size: int
    activation: str
    norm: NormSpec
    padding_token: int = 0
    """Token with the embeddings that the placeholders of images have."""

    def __post_init__(self) -> None:
        check_activation(self.activation)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttentionSpec:
    """Cross attention: queries from the residual stream, keys and values from the encoder
    output.
    """

    attention: AttentionSpec
    """Heads, scale and biases."""
    norm_in: NormSpec | None = None
    norm_out: NormSpec | None = None
    """Norm of the output; with `post_norm`, of the sum with the residual stream."""
    gated: bool = False
    """Whether the outputs of cross attention and MLP are multiplied by the tanh of stored scalars.
    Tokens without encoder states skip such a layer (Mllama).
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBlockSpec:
    """One layer's use of a transformer block shared by several layers (Zamba2).

    Its input is the residual stream concatenated with the token embedding. Its output goes to the
    recurrent part, not to the residual stream.
    """

    stored: str
    """Checkpoint prefix of the shared block."""
    use: int
    """Index of this use, which numbers the weights that are not shared."""
    norm: NormSpec
    mlp: MlpSpec
    rank: int
    """Rank of the low-rank adapter that each use adds to the MLP input projection; 0: none."""
    gate_up: bool = True
    """Whether checkpoints store gate and up projection of the MLP in one tensor."""
    adapts_attention: bool = False
    """Whether each use also adds low-rank adapters to queries, keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One layer: its parts and its norms.

    Attention and a recurrent part read the same input and their outputs are added. A layer may have
    one of them, or only an MLP.
    """

    attention: AnyAttentionSpec | None = None
    recurrent: RecurrentSpec | None = None
    mlp: MlpSpec | MoeSpec | None = None
    attention_in: NormSpec | None = None
    attention_out: NormSpec | None = None
    mlp_in: NormSpec | None = None
    mlp_out: NormSpec | None = None
    parallel: bool = False
    """Whether attention and MLP both read the layer input; without `mlp_in` they share a norm."""
    parallel_experts: ParallelExpertsSpec | None = None
    delayed_moe: MoeSpec | None = None
    """Experts with the MLP's input and an output added after the next layer; None: none."""
    early_moe: MoeSpec | None = None
    """Experts that read the layer's input, with the norm of `mlp_in`'s kind and own weights; their
    output is added with the MLP's; None: none.
    """
    saved_streams: tuple[str, ...] = ()
    """Names under which later layers find the residual stream before this layer."""
    blend: tuple[str, float] | None = None
    """An earlier residual stream that is mixed into this layer's, and its share; None: none."""
    ngrams: NgramSpec | None = None
    """Embeddings of n-grams that are added to the streams before this layer; None: none."""
    scaled: bool = False
    """Whether the residual stream is multiplied by a stored scalar after this layer."""
    affine_sums: bool = False
    """Whether the residual stream and each output have a stored addend and factor per channel
    before they are added.
    """
    streams: BlockStreamsSpec | None = None
    """Sublayers read the sums of earlier blocks of layers; None: they read the residual stream."""
    post_norm: bool = False
    """Whether `attention_out` and `mlp_out` normalise the sum with the residual stream (post-norm).
    """
    residual_scale: float = 1.0
    """Factor on the outputs that attention and MLP add to the residual stream."""
    normed_residual: tuple[tuple[float, float], tuple[float, float]] | None = None
    """Factors (on the residual, on the output) of attention and MLP where the input norms also
    normalise the residual stream; None: they do not.
    """
    cross: CrossAttentionSpec | None = None
    """Cross attention, between attention and MLP; None: none."""
    shared: SharedBlockSpec | None = None
    """Shared transformer block that uses `attention` and feeds the recurrent part; None: none."""

    def __post_init__(self) -> None:
        if self.attention is None and self.recurrent is None and self.mlp is None:
            raise ModelError("a layer needs attention, a recurrent part or an MLP.")
        if self.parallel and (self.attention_out or self.mlp_out or not self.mlp):
            raise ModelError("a parallel layer needs an MLP and supports no output norms.")
        if self.post_norm and not (self.attention_out and self.mlp_out and self.mlp):
            raise ModelError("post_norm needs attention_out, mlp_out and an MLP.")
        if self.early_moe and not (self.mlp_in and self.mlp):
            raise ModelError("early_moe needs mlp_in and an MLP.")
        if self.normed_residual and not (self.attention_in and self.mlp_in and self.mlp):
            raise ModelError("normed_residual needs attention_in, mlp_in and an MLP.")
        if self.shared and not (isinstance(self.attention, AttentionSpec) and self.recurrent):
            raise ModelError("shared needs attention and a recurrent part.")

    @property
    def kv_source_layer(self) -> int | None:
        """Index of the earlier layer that owns this layer's keys and values; None: its own."""
        return getattr(self.attention, "kv_source_layer", None)

    @property
    def index_source_layer(self) -> int | None:
        """Index of the earlier layer that selects the tokens; None: this one does, or none."""
        indexer = getattr(self.attention, "indexer", None)
        return None if indexer is None else indexer.source_layer


def pre_norm_layer(norm: NormSpec, **facts: Any) -> LayerSpec:
    """Return a layer with the same norm, with own weights, before attention and before the MLP."""
    return LayerSpec(attention_in=norm, mlp_in=norm, **facts)


def post_norm_layer(norm: NormSpec, **facts: Any) -> LayerSpec:
    """Return a layer that normalises the sums after attention and MLP, each with own weights."""
    return LayerSpec(attention_out=norm, mlp_out=norm, post_norm=True, **facts)


def check_activation(name: str) -> None:
    if name not in ACTIVATIONS:
        raise ModelError(f"activation: got {name!r}; expected one of {', '.join(ACTIVATIONS)}.")
