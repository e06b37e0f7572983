"""What a decoder model is, as facts: the data one decoder assembly reads. Knows no torch, no file,
no model by name.

A `LayerSpec` says what one layer is made of; layers of a model may differ. New kinds of layers are
new spec types beside `AttentionSpec` and `MlpSpec`, not flags.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from core.errors import ConfigError, ModelError
from core.model_spec.attention import AttentionSpec
from core.model_spec.latent import LatentAttentionSpec
from core.model_spec.names import WeightNames
from core.model_spec.parts import NormSpec
from core.model_spec.pooling import PoolingSpec
from core.model_spec.recurrent import RecurrentSpec, recurrent_obstacle

ACTIVATIONS: Final = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu", "swiglu_clamped")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpSpec:
    """Two or three linear layers and an activation."""

    width: int
    activation: str = "silu"
    gated: bool = True
    bias: bool = False
    out_bias: bool | None = None
    """Whether the last product has one where it differs from the first."""
    inner_norm: NormSpec | None = None
    """Normalises what the activation gives, before the last product."""
    gate_scale: float = 1.0
    """Factor on what the activation reads, of a gated one."""
    out_scale: float = 1.0

    def __post_init__(self) -> None:
        _check_activation(self.activation)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """A router and experts, each a gated MLP of `width`."""

    experts: int
    top_k: int
    width: int
    activation: str = "silu"
    score: Literal["softmax", "sigmoid", "sparsemixer"] = "softmax"
    renormalize: bool = True
    """Shares of the chosen experts are scaled to sum to one."""
    scale: float = 1.0
    """Factor on the shares, after that."""
    jitter: float = 0.01
    """What sparsemixer takes for near enough to the best score."""
    choice_bias: bool = False
    """A learned number per expert is added to its score for the choice, not for its share."""
    groups: int = 1
    """Experts are in so many groups, and a token chooses among those of its best `top_groups`."""
    top_groups: int = 1
    group_best: int = 2
    """A group is worth the sum of so many of its best scores."""
    zero_experts: int = 0
    """So many more that a token may choose give back what they read."""
    wide_router: bool = False
    """The router's product is computed in float32."""
    router_bias: bool = False
    router_norm: NormSpec | None = None
    """Normalises what the router reads."""
    router_scale: float = 1.0
    """Factor on the router's product."""
    expert_scale: bool = False
    """A learned number per expert multiplies its share."""
    bias: bool = False
    """The experts' products have biases."""
    scaled_input: bool = False
    """Shares multiply what an expert reads instead of what it gives."""
    gated: bool = True
    """False: experts are two products with the activation between."""
    latent: int = 0
    """Width of what experts read and give, where products lead from the stream to it and back; 0:
    the stream's.
    """
    latent_bias: bool = False
    shared: MlpSpec | None = None
    """An MLP that every token takes besides."""
    shared_gate: bool = False
    """It is multiplied by the sigmoid of a product of the input."""

    def __post_init__(self) -> None:
        _check_activation(self.activation)
        if self.experts % self.groups or not 1 <= self.top_groups <= self.groups:
            raise ModelError(
                f"{self.experts} experts are not in {self.groups} groups, {self.top_groups} of "
                "them taken."
            )
        if not 1 <= self.top_k <= self.experts + self.zero_experts:
            raise ModelError(
                f"a token cannot take {self.top_k} of {self.experts} experts; check "
                "num_experts_per_tok."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideSpec:
    """Experts that read the stream beside a layer's MLP; both results are normalised and added."""

    moe: MoeSpec
    norm: NormSpec
    """Of what the experts read, of what they give, and of what the MLP gives: each with weights of
    its own.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInputSpec:
    """Each layer's own embedding of every token: multiplied into the stream after its MLP."""

    size: int
    vocab_size: int
    activation: str
    norm: NormSpec

    def __post_init__(self) -> None:
        _check_activation(self.activation)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossSpec:
    """Attention to what the encoder made: queries come from the stream, keys and values from there."""

    attention: AttentionSpec
    """Its heads, scale and biases."""
    norm_in: NormSpec | None = None
    norm_out: NormSpec | None = None
    """Of what it gives; in a layer with `norm_sum`, of the stream with that added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSpec:
    """One layer's use of a transformer that several layers share: attention and an MLP, each behind
    a norm.

    It reads the stream beside the tokens' embedding, twice as wide, and adds nothing to the stream
    by itself.
    """

    stored: str
    """Checkpoint prefix of what is shared."""
    use: int
    """Which use of any such transformer this is: what is not shared has its number."""
    norm: NormSpec
    mlp: MlpSpec
    rank: int
    """Of the products that each use adds to what the MLP reads."""
    adapts_attention: bool = False
    """It adds such to queries, keys and values too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One layer: what it is made of, and where norms stand.

    Attention and a recurrent part read the same and their results are added; a layer may have one
    of them, or only an MLP.
    """

    attention: AttentionSpec | LatentAttentionSpec | None = None
    recurrent: RecurrentSpec | None = None
    mlp: MlpSpec | MoeSpec | None = None
    attention_in: NormSpec | None = None
    attention_out: NormSpec | None = None
    mlp_in: NormSpec | None = None
    mlp_out: NormSpec | None = None
    parallel: bool = False
    """Attention and MLP both read the layer's input; without `mlp_in` they share the norm
    `attention_in`.
    """
    beside: BesideSpec | None = None
    late: MoeSpec | None = None
    """Experts that read what the MLP reads; what they give is added behind the next layer."""
    scaled: bool = False
    """The stream is multiplied by a stored number after this layer."""
    norm_sum: bool = False
    """`attention_out` and `mlp_out` normalise the stream with the part added, not the part alone.
    """
    residual_scale: float = 1.0
    """Factor on what attention and MLP add to the stream."""
    normed_stream: tuple[tuple[float, float], tuple[float, float]] | None = None
    """`attention_in` and `mlp_in` change the stream itself.

    For each: factors on it, and on what is added.
    """
    cross: CrossSpec | None = None
    """Between the two, attention to what the encoder made."""
    shared: SharedSpec | None = None
    """`attention` is that of a transformer in which several layers share weights; the recurrent
    part reads its result.
    """

    def __post_init__(self) -> None:
        if self.attention is None and self.recurrent is None and self.mlp is None:
            raise ModelError(
                "a layer has neither attention nor a recurrent part nor an MLP; it would do "
                "nothing."
            )
        if self.parallel and (self.attention_out or self.mlp_out or not self.mlp):
            raise ModelError(
                "a layer whose parts are parallel has both, and norms only before them."
            )
        if self.norm_sum and not (self.attention_out and self.mlp_out and self.mlp):
            raise ModelError(
                "a layer that normalises sums needs attention_out, mlp_out and an MLP."
            )
        if self.normed_stream and not (self.attention_in and self.mlp_in and self.mlp):
            raise ModelError(
                "a layer that normalises the stream itself needs attention_in, mlp_in and an MLP."
            )
        if self.shared and not (isinstance(self.attention, AttentionSpec) and self.recurrent):
            raise ModelError(
                "a layer with a shared transformer needs its attention, and a recurrent part that "
                "reads it."
            )

    @property
    def shares(self) -> int | None:
        """The earlier layer whose keys and values are attended to, if they are not this layer's
        own.
        """
        return self.attention.shares if isinstance(self.attention, AttentionSpec) else None


@dataclass(frozen=True, slots=True)
class FramesSpec:
    """Input that is features instead of tokens: two convolutions over the frames, the second with
    half of them.
    """

    size: int
    """Numbers per frame."""
    activation: str = "gelu"

    def __post_init__(self) -> None:
        _check_activation(self.activation)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """What reads a request's input, each token seeing all, before the decoder's first step.

    As wide as the decoder.
    """

    layers: tuple[LayerSpec, ...]
    norm: NormSpec | None = None
    """The last norm."""
    frames: FramesSpec | None = None
    """None: it reads tokens, by the decoder's embedding unless `names` has another."""
    vocab_size: int = 0
    """Of that other embedding."""
    max_len: int | None = None
    """Most positions; None: as many as the decoder has. Frames are exactly twice as many."""
    embed_scale: float = 1.0
    embed_norm: NormSpec | None = None
    learned_positions: int = 0
    position_offset: int = 0
    sinusoidal_positions: bool | Literal["wide"] = False
    start_tokens: tuple[int, ...] = ()
    """The decoder's prompt where a request has none; the first of them is the first of any."""
    names: WeightNames = field(default_factory=WeightNames)

    def __post_init__(self) -> None:
        if not self.layers:
            raise ModelError("the encoder has no layers; check the config's number of them.")
        if (
            self.learned_positions
            and self.max_len is not None
            and self.max_len > self.learned_positions
        ):
            raise ModelError(
                f"the encoder learned {self.learned_positions} positions, fewer than "
                f"{self.max_len}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadSpec:
    """A layer that continues the hidden states by one token more, as checkpoints have it behind the
    others.

    It reads the embedding of a token beside the hidden state before it: both normalised, then a
    product of the two.
    """

    layer: LayerSpec
    norm: NormSpec
    """Of the embedding and of the hidden state, each with weights of its own."""
    stored: str
    """Checkpoint prefix of the layer."""
    tensors: tuple[str, ...]
    """Patterns of all names that belong to it ..."""
    ignored: tuple[str, ...] = ()
    """... and of those that are copies of the decoder's own embedding and head."""
    token_norm: str
    hidden_norm: str
    product: str
    """These three are whole names, without `.weight`."""
    product_bias: bool = False
    hidden_first: bool = False
    """The product reads the hidden state before the embedding."""
    final_norm: str = ""
    """Of what the head reads; empty: it reads the stream as it is."""
    continues_normed: bool = False
    """The next step reads what the head does, not the stream before that norm."""


def layer_behind(layer: LayerSpec, norm: NormSpec, index: int) -> AheadSpec:
    """Return the layer that is stored as the `index`-th, behind a decoder's own, with all that
    belongs to it.
    """
    stored = f"model.layers.{index}"
    return AheadSpec(
        layer=layer,
        norm=norm,
        stored=stored,
        tensors=(f"{stored}.*",),
        ignored=(
            f"{stored}.embed_tokens.*",
            f"{stored}.shared_head.head.*",
            "*.rotary_emb.inv_freq",
        ),
        token_norm=f"{stored}.enorm",
        hidden_norm=f"{stored}.hnorm",
        product=f"{stored}.eh_proj",
        final_norm=f"{stored}.shared_head.norm",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A whole decoder. Raises `ModelError` for facts that exclude each other."""

    vocab_size: int
    hidden_size: int
    max_positions: int
    """Positions the rotary tables are made for: the longest context served."""
    context_limit: int = 0
    """Longest context in which it gives what its authors' code gives, where that is less than it
    was made for; 0: none.
    """
    limited_by: str = ""
    """What limits it, said wherever the limit is."""
    layers: tuple[LayerSpec, ...]
    norm: NormSpec | None = field(default_factory=NormSpec)
    """The last norm, before the head."""
    tied_head: bool | Literal["unless stored"] = False
    """The head is the embedding; "unless stored": where the checkpoint has no other."""
    head_bias: bool = False
    embed_scale: float = 1.0
    embed_size: int = 0
    """Width of embedding and head where it is not `hidden_size`: products lead from one to the
    other.
    """
    embed_norm: NormSpec | None = None
    learned_positions: int = 0
    """Rows of the table of learned positions; 0: there is none."""
    position_offset: int = 0
    """The row of position 0."""
    token_types: int = 0
    """Rows of the table that tells the texts of a pair apart; 0: there is none."""
    embed_in_last: bool = False
    """Positions, types and norm have the embedding's own width; the product to the layers' comes
    last, with a bias.
    """
    sinusoidal_positions: bool | Literal["wide"] = False
    """Sines and cosines of every position are added to the embedding; "wide": 1 / 10000 would be
    the frequency
    behind the last, not the last."""
    layer_inputs: LayerInputSpec | None = None
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    stored_layers: tuple[int, ...] = ()
    """Which of the checkpoint's layers each one is, where layers share weights; empty: each its
    own.
    """
    pooling: PoolingSpec | None = None
    """What it makes of a prompt instead of tokens."""
    encoder: EncoderSpec | None = None
    ahead: AheadSpec | None = None
    """What its checkpoint has besides, to continue its hidden states by another token; not among
    `layers`.
    """
    names: WeightNames = field(default_factory=WeightNames)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "max_positions"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not self.layers:
            raise ModelError("num_hidden_layers is 0; a model has at least one layer.")

    @property
    def shortened_by(self) -> str:
        """Return what limits the context that is served; empty: only what it was made for, or the
        user.
        """
        return self.limited_by if 0 < self.context_limit <= self.max_positions else ""

    @property
    def has_head(self) -> bool:
        """Say whether it makes logits of tokens: a model that is pooled leaves its head out,
        mostly.
        """
        return self.pooling is None or self.pooling.logits

    @property
    def bidirectional(self) -> bool:
        """Say whether a prompt must be computed in one step."""
        return any(
            layer.attention is not None and not layer.attention.causal for layer in self.layers
        )

    @property
    def is_guided(self) -> bool:
        """Say whether layers read the tokens' embedding beside the stream."""
        return any(layer.shared is not None for layer in self.layers)

    def check_split(self, tensor: int, pipeline: int) -> None:
        """Raise `ConfigError` when `tensor` ranks cannot split every layer, or `pipeline` stages
        have no layer each.
        """
        if pipeline > len(self.layers):
            raise ConfigError(
                f"--pipeline-parallel-size {pipeline} is more than the {len(self.layers)} layers "
                "of the model; "
                f"use at most {len(self.layers)}."
            )
        tied = any(layer.shares is not None or layer.late is not None for layer in self.layers)
        if pipeline > 1 and (self.layer_inputs or tied or self.is_guided):
            raise ConfigError(
                f"--pipeline-parallel-size {pipeline} would part layers of this model that read "
                "each other's keys or results or the "
                "embedding; use --tensor-parallel-size instead."
            )
        if pipeline > 1 and self.encoder is not None:
            raise ConfigError(
                f"--pipeline-parallel-size {pipeline} would part the model's encoder from its "
                "decoder; use "
                "--tensor-parallel-size instead."
            )
        obstacle = self._obstacle(tensor)
        if obstacle is not None:
            parts = [
                part
                for layer in self.layers
                for part in (layer.attention, layer.recurrent)
                if part is not None
            ]
            most = min(getattr(part, "heads", 1) for part in parts) if parts else 1
            fitting = [str(ranks) for ranks in range(1, most + 1) if self._obstacle(ranks) is None]
            raise ConfigError(
                f"--tensor-parallel-size {tensor} {obstacle}; possible here: {', '.join(fitting)}."
            )

    def _obstacle(self, ranks: int) -> str | None:
        """Say why so many ranks cannot split the layers."""
        for layer in {*self.layers, *(self.encoder.layers if self.encoder else ())}:
            obstacle = recurrent_obstacle(layer.recurrent, ranks)
            if obstacle is not None:
                return obstacle
            mlps = _mlp_obstacle(layer.mlp, ranks) or _mlp_obstacle(layer.late, ranks)
            obstacle = _attention_obstacle(layer.attention, ranks) or mlps
            if obstacle is not None:
                return obstacle
            if layer.beside is not None and layer.beside.moe.width % ranks:
                return f"does not divide the experts' intermediate size {layer.beside.moe.width}"
        return None


def _attention_obstacle(
    attention: AttentionSpec | LatentAttentionSpec | None, ranks: int
) -> str | None:
    if attention is None:
        return None
    if attention.heads % ranks:
        return f"does not divide the model's {attention.heads} attention heads"
    if isinstance(attention, LatentAttentionSpec):
        return None
    kv_heads = attention.kv_heads
    if kv_heads % ranks and ranks % kv_heads:
        return f"neither divides the model's {kv_heads} key-value heads nor is a multiple of them"
    if kv_heads % ranks and attention.qk_norm_over == "all":
        return f"is more than the model's {kv_heads} key-value heads, which are normalised together"
    return None


def _mlp_obstacle(mlp: MlpSpec | MoeSpec | None, ranks: int) -> str | None:
    shared = mlp.shared if isinstance(mlp, MoeSpec) else None
    if shared is not None and shared.width % ranks:
        return f"does not divide the shared expert's intermediate size {shared.width}"
    if mlp is not None and mlp.width % ranks:
        kind = "experts'" if isinstance(mlp, MoeSpec) else "model's"
        return f"does not divide the {kind} intermediate size {mlp.width}"
    return None


def _check_activation(name: str) -> None:
    if name not in ACTIVATIONS:
        raise ModelError(f"activation {name!r} is not one of {', '.join(ACTIVATIONS)}.")
