"""What a decoder model is, as facts: the data one decoder assembly reads. Knows no torch, no file, no model by name.

A `LayerSpec` says what one layer is made of; layers of a model may differ. New kinds of layers are new spec types
beside `AttentionSpec` and `MlpSpec`, not flags.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from core.errors import ConfigError, ModelError

ACTIVATIONS: Final = ("silu", "gelu", "gelu_tanh", "relu")


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A normalisation: root mean square, or layer norm with mean and (usually) bias."""

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    offset: float = 0.0
    """Added to the stored weight (rms only)."""
    bias: bool = False


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All angles divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """The base grows with the served context beyond `original` positions."""

    factor: float
    original: int


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths divided by `factor`, short ones kept, those between interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original: int

    def __post_init__(self) -> None:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ModelError(
                f"high_freq_factor {self.high_freq_factor} of the rotary scaling is not above low_freq_factor "
                f"{self.low_freq_factor}."
            )


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Interpolation and extrapolation blended per dimension; cosines and sines times `attention_factor`."""

    factor: float
    original: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class LongScaling:
    """One divisor per angle: the long ones when the served context exceeds `original`, else the short ones."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    original: int
    attention_factor: float


RopeScaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongScaling


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions: the first `size` entries of a head turn, the others pass."""

    size: int
    theta: float = 10_000.0
    interleaved: bool = False
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if self.size < 2 or self.size % 2:
            raise ModelError(
                f"rotary size {self.size} is not a positive even number; check head_dim and partial_rotary_factor."
            )
        if self.theta <= 1:
            raise ModelError(f"rope_theta {self.theta} is not above 1, so no position would be told from another.")
        if isinstance(self.scaling, DynamicScaling) and self.size < 4:
            raise ModelError(f"dynamic rotary scaling needs a rotary size of at least 4, not {self.size}.")
        if isinstance(self.scaling, LongScaling):
            for name, factors in (("short_factor", self.scaling.short), ("long_factor", self.scaling.long)):
                if len(factors) != self.size // 2:
                    raise ModelError(f"{name} of the rotary scaling has {len(factors)} values, not {self.size // 2}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Causal attention of one layer over cached keys and values."""

    heads: int
    kv_heads: int
    head_size: int
    rope: RopeSpec | None = None
    """None: no rotary positions in this layer."""
    scale: float | None = None
    """Factor on the scores; None: 1 / sqrt(head_size)."""
    window: int | None = None
    """Tokens visible, the current one included; None: all."""
    chunk: int | None = None
    """Only tokens of the current chunk of so many positions are visible."""
    softcap: float | None = None
    qk_norm: NormSpec | None = None
    """Normalises queries and keys before they turn."""
    qk_norm_full: bool = False
    """The norm is over all heads together instead of each head."""
    qkv_bias: bool = False
    out_bias: bool = False

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "head_size"):
            if getattr(self, name) < 1:
                raise ModelError(f"attention has {name} {getattr(self, name)}; it must be at least 1.")
        if self.heads % self.kv_heads:
            raise ModelError(
                f"num_attention_heads {self.heads} is not a multiple of num_key_value_heads {self.kv_heads}; "
                "each key-value head must serve an equal number of heads."
            )
        if self.rope is not None and self.rope.size > self.head_size:
            raise ModelError(
                f"rotary size {self.rope.size} is larger than the head size {self.head_size}; "
                "check head_dim and partial_rotary_factor."
            )
        if self.window is not None and self.window < 1:
            raise ModelError(f"sliding_window {self.window} hides the token itself; it must be at least 1, or null.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpSpec:
    """Two or three linear layers and an activation."""

    width: int
    activation: str = "silu"
    gated: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        _check_activation(self.activation)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """A router and experts, each a gated MLP of `width`."""

    experts: int
    top_k: int
    width: int
    activation: str = "silu"
    score: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = True
    """Shares of the chosen experts are scaled to sum to one."""

    def __post_init__(self) -> None:
        _check_activation(self.activation)
        if not 1 <= self.top_k <= self.experts:
            raise ModelError(f"a token cannot take {self.top_k} of {self.experts} experts; check num_experts_per_tok.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One layer: what it is made of, and where norms stand."""

    attention: AttentionSpec
    mlp: MlpSpec | MoeSpec
    attention_in: NormSpec | None = None
    attention_out: NormSpec | None = None
    mlp_in: NormSpec | None = None
    mlp_out: NormSpec | None = None
    parallel: bool = False
    """Attention and MLP both read the layer's input; without `mlp_in` they share the norm `attention_in`."""
    residual_scale: float = 1.0
    """Factor on what attention and MLP add to the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNames:
    """Where the checkpoint keeps each part; the defaults are what most models use. Prefixes, without `.weight`."""

    embed: str = "model.embed_tokens"
    positions: str = ""
    final_norm: str = "model.norm"
    head: str = "lm_head"
    layer: str = "model.layers.{}"
    attention_in: str = "input_layernorm"
    attention_out: str = ""
    mlp_in: str = "post_attention_layernorm"
    mlp_out: str = ""
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    o: str = "self_attn.o_proj"
    qkv: str = ""
    """Set when the checkpoint keeps query, key and value in one tensor."""
    qkv_grouped: bool = False
    """The rows of `qkv` go by key-value head (its queries, its key, its value) instead of all queries first."""
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    gate_up: str = ""
    """Set when the checkpoint keeps gate and up in one tensor."""
    router: str = "mlp.gate"
    expert: str = "mlp.experts.{}"
    expert_gate: str = "gate_proj"
    expert_up: str = "up_proj"
    expert_down: str = "down_proj"
    transposed: bool = False
    """Weights of the layers' linear parts are stored [in, out]."""
    rename: tuple[tuple[str, str], ...] = ()
    """Regular expression and replacement, applied to each tensor's name before it is looked up."""
    ignored: tuple[str, ...] = ("*.rotary_emb.inv_freq",)
    """Patterns of tensors that are not weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A whole decoder. Raises `ModelError` for facts that exclude each other."""

    vocab_size: int
    hidden_size: int
    max_positions: int
    """Positions the rotary tables are made for: the longest context served."""
    layers: tuple[LayerSpec, ...]
    norm: NormSpec = field(default_factory=NormSpec)
    """The last norm, before the head."""
    tied_head: bool = False
    head_bias: bool = False
    embed_scale: float = 1.0
    learned_positions: int = 0
    """Rows of the table of learned positions; 0: there is none."""
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    names: WeightNames = field(default_factory=WeightNames)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "max_positions"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not self.layers:
            raise ModelError("num_hidden_layers is 0; a model has at least one layer.")

    def check_split(self, tensor: int, pipeline: int) -> None:
        """Raise `ConfigError` when `tensor` ranks cannot split every layer, or `pipeline` stages have no layer each."""
        if pipeline > len(self.layers):
            raise ConfigError(
                f"--pipeline-parallel-size {pipeline} is more than the {len(self.layers)} layers of the model; "
                f"use at most {len(self.layers)}."
            )
        obstacle = self._obstacle(tensor)
        if obstacle is not None:
            most = min(layer.attention.heads for layer in self.layers)
            fitting = [str(ranks) for ranks in range(1, most + 1) if self._obstacle(ranks) is None]
            raise ConfigError(f"--tensor-parallel-size {tensor} {obstacle}; possible here: {', '.join(fitting)}.")

    def _obstacle(self, ranks: int) -> str | None:
        """Say why so many ranks cannot split the layers."""
        for layer in set(self.layers):
            attention, width = layer.attention, layer.mlp.width
            kv_heads = attention.kv_heads
            if attention.heads % ranks:
                return f"does not divide the model's {attention.heads} attention heads"
            if kv_heads % ranks and ranks % kv_heads:
                return f"neither divides the model's {kv_heads} key-value heads nor is a multiple of them"
            if kv_heads % ranks and attention.qk_norm_full:
                return f"is more than the model's {kv_heads} key-value heads, which are normalised together"
            if width % ranks:
                kind = "experts'" if isinstance(layer.mlp, MoeSpec) else "model's"
                return f"does not divide the {kind} intermediate size {width}"
        return None


def _check_activation(name: str) -> None:
    if name not in ACTIVATIONS:
        raise ModelError(f"activation {name!r} is not one of {', '.join(ACTIVATIONS)}.")
