"""A decoder model as data, which one `Decoder` module builds.

Knows no torch, no file, no model by name. Layers of a model may differ (`LayerSpec`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from core.errors import ConfigError, ModelError
from core.model_spec.attention import AttentionSpec, NormSpec
from core.model_spec.compressed import (
    CompressedAttentionSpec,
    ConvolvedAttentionSpec,
    GatedStreamsSpec,
    HyperConnectionSpec,
)
from core.model_spec.encoder import EncoderSpec
from core.model_spec.layer import (
    AnyAttentionSpec,
    LayerSpec,
    MlpSpec,
    MoeSpec,
    ParallelExpertsSpec,
    PerLayerInputSpec,
)
from core.model_spec.names import WeightNames
from core.model_spec.pooling import DenseSpec, PoolingSpec
from core.model_spec.recurrent import recurrent_split_error
from core.model_spec.tower import TowerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpLayerSpec:
    """Multi-token-prediction (MTP) layer of a checkpoint: predicts one more token.

    It reads a token's embedding and the preceding hidden state: both are normalised, concatenated
    and projected to the hidden size.
    """

    layer: LayerSpec
    norm: NormSpec
    """Norm of the embedding and of the hidden state, each with its own weights."""
    stored: str
    """Checkpoint prefix of the layer."""
    tensors: tuple[str, ...]
    """Patterns of the names of its tensors."""
    ignored: tuple[str, ...] = ()
    """Patterns of its tensors that copy the decoder's embedding and head."""
    token_norm: str
    hidden_norm: str
    product: str
    """Full names of `token_norm`, `hidden_norm` and `product`, without `.weight`."""
    product_bias: bool = False
    hidden_first: bool = False
    """Whether the hidden state comes before the embedding in the projection's input."""
    final_norm: str = ""
    """Name of the norm before the head; empty: no norm."""
    names: WeightNames | None = None
    """Names within the layer; None: those of the decoder's layers."""
    continues_normed: bool = False
    """Whether the next MTP step reads the normalised hidden state instead of the residual stream.
    """


def mtp_layer(layer: LayerSpec, norm: NormSpec, index: int) -> MtpLayerSpec:
    """Return the MTP layer that DeepSeek-style checkpoints store as layer `index`."""
    stored = f"model.layers.{index}"
    return MtpLayerSpec(
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
    """A whole decoder. Raises `ModelError` for contradicting values."""

    vocab_size: int
    """Rows of the embedding."""
    num_prompt_tokens: int = 0
    """Last tokens of the vocabulary that only prompts have: the head has no rows for them."""
    num_padding_tokens: int = 0
    """Last rows of the head that only pad it: no token is sampled from them."""
    hidden_size: int
    max_positions: int
    """Longest context served, in tokens; sizes the rotary tables."""
    context_limit: int = 0
    """Longest context with results equal to the reference implementation; 0: no limit."""
    limited_by: str = ""
    """Reason of `context_limit`, for messages."""
    layers: tuple[LayerSpec, ...]
    norm: NormSpec | None = field(default_factory=NormSpec)
    """Final norm, before the head."""
    tied_head: bool = False
    """Whether the head is the embedding, unless the checkpoint stores a different one."""
    head_bias: bool = False
    head_transform: DenseSpec | None = None
    """Dense layer between the final norm and the head, in float32; None: none."""
    head_normalized: Literal["", "rows", "columns"] = ""
    """Vectors of the head's weight that are scaled to length 1 when it is loaded; empty: none."""
    embed_scale: float = 1.0
    embed_size: int = 0
    """Width of embedding and head, with projections from and to `hidden_size`; 0: `hidden_size`."""
    embed_norm: NormSpec | None = None
    embed_norm_first: bool = False
    """Whether `embed_norm` comes before the position embeddings are added, not after."""
    learned_positions: int = 0
    """Rows of the learned position embedding; 0: none."""
    position_offset: int = 0
    """Row of position 0 in the position embedding."""
    token_types: int = 0
    """Rows of the token type embedding; 0: none."""
    embed_in_last: bool = False
    """Whether the projection to `hidden_size` (with bias) follows positions, types and norm."""
    sinusoidal_positions: bool | Literal["wide"] = False
    """Sinusoidal position embedding; "wide": 1 / 10000 is the frequency after the last one."""
    per_layer_inputs: PerLayerInputSpec | None = None
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    stored_layers: tuple[int, ...] = ()
    """Checkpoint layer of each layer, where layers share weights; empty: one to one. Each has a KV
    cache of its own.
    """
    loop_length: int = 0
    """Layers after which the final norm normalises the residual stream, again and again; 0: it does
    so at the end only.
    """
    hyper_connections: HyperConnectionSpec | GatedStreamsSpec | None = None
    """Several residual streams instead of one; None: one."""
    pooling: PoolingSpec | None = None
    """Pooling of a pooling model; None: the model generates."""
    encoder: EncoderSpec | None = None
    tower: TowerSpec | None = None
    """Encoder of images, in front of the embedding; None: the model reads text only."""
    mtp: MtpLayerSpec | None = None
    """MTP layer of the checkpoint, not among `layers`; None: none."""
    names: WeightNames = field(default_factory=WeightNames)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "max_positions"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name}: got {getattr(self, name)}; expected at least 1.")
        if not self.layers:
            raise ModelError("num_hidden_layers: got 0; expected at least 1.")

    @property
    def shortened_by(self) -> str:
        """Reason why the served context is shortened; empty: it is not."""
        return self.limited_by if 0 < self.context_limit <= self.max_positions else ""

    @property
    def stream_width(self) -> int:
        """Elements of a token between two layers."""
        hyper = self.hyper_connections
        return self.hidden_size * (1 if hyper is None else hyper.streams)

    @property
    def reads_blocks(self) -> bool:
        """Whether sublayers read the sums of earlier blocks of layers."""
        return any(layer.streams is not None for layer in self.layers)

    @property
    def has_head(self) -> bool:
        """Whether the model has an LM head; pooling models usually have none."""
        return self.pooling is None or self.pooling.logits

    @property
    def bidirectional(self) -> bool:
        """Whether attention is bidirectional, so a prompt must be computed in one step."""
        return any(
            layer.attention is not None and not layer.attention.causal for layer in self.layers
        )

    @property
    def layers_read_embedding(self) -> bool:
        """Whether layers read the token embedding in addition to the residual stream."""
        return any(layer.shared is not None for layer in self.layers)

    def with_expert_placement(self, placement: str) -> DecoderSpec:
        """Return the decoder with whole experts on each rank; without experts, the decoder."""
        layers = tuple(_with_placement(layer, placement) for layer in self.layers)
        mtp = self.mtp and replace(self.mtp, layer=_with_placement(self.mtp.layer, placement))
        return replace(self, layers=layers, mtp=mtp)

    @property
    def has_experts(self) -> bool:
        """Whether a layer has routed experts."""
        return any(_moe_parts(layer) for layer in self.layers)

    def selects_tokens(self, layer: LayerSpec) -> bool:
        """Return whether a layer's indexer is needed; not in contexts of up to `top_k` tokens."""
        indexer = getattr(layer.attention, "indexer", None)
        return indexer is not None and self.max_positions > indexer.top_k

    def check_split(self, tensor: int, pipeline: int) -> None:
        """Raise `ConfigError` when the layers cannot be split over `tensor` ranks and `pipeline`
        stages.
        """
        if pipeline > len(self.layers):
            raise ConfigError(
                f"--pipeline-parallel-size {pipeline} is more than the {len(self.layers)} layers "
                "of the model; "
                f"use at most {len(self.layers)}."
            )
        tied = any(
            layer.kv_source_layer is not None
            or layer.index_source_layer is not None
            or layer.delayed_moe is not None
            or layer.blend is not None
            or layer.streams is not None
            or getattr(getattr(layer.mlp, "router_mlp", None), "adds_previous", False)
            for layer in self.layers
        )
        tied = tied or bool(self.loop_length or self.per_layer_inputs or self.layers_read_embedding)
        if pipeline > 1 and tied:
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
        if pipeline > 1 and self.tower is not None:
            raise ConfigError(
                f"--pipeline-parallel-size: got {pipeline}; expected 1 for a model with a tower. "
                "Use --tensor-parallel-size."
            )
        error = self._split_error(tensor)
        if error is not None:
            parts = [
                part
                for layer in self.layers
                for part in (layer.attention, layer.recurrent)
                if part is not None
            ]
            max_ranks = min(getattr(part, "heads", 1) for part in parts) if parts else 1
            fitting = [
                str(ranks) for ranks in range(1, max_ranks + 1) if self._split_error(ranks) is None
            ]
            raise ConfigError(
                f"--tensor-parallel-size {tensor} {error}; possible here: {', '.join(fitting)}."
            )

    def _split_error(self, ranks: int) -> str | None:
        """Return why `ranks` ranks cannot split the layers; None: they can."""
        for layer in {*self.layers, *(self.encoder.layers if self.encoder else ())}:
            error = recurrent_split_error(layer.recurrent, ranks)
            if error is not None:
                return error
            parallel = layer.parallel_experts
            own = None if parallel is None else parallel.moe
            parts = (layer.mlp, layer.delayed_moe, layer.early_moe, own)
            mlps = (_mlp_split_error(part, ranks) for part in parts)
            error = _attention_split_error(layer.attention, ranks) or next(filter(None, mlps), None)
            if error is not None:
                return error
        return None


def _moe_parts(layer: LayerSpec) -> dict[str, MoeSpec | ParallelExpertsSpec]:
    """Return the parts of a layer with routed experts, by field."""
    fields = ("mlp", "delayed_moe", "early_moe", "parallel_experts")
    parts = {name: getattr(layer, name) for name in fields}
    return {
        name: part
        for name, part in parts.items()
        if isinstance(part, (MoeSpec, ParallelExpertsSpec))
    }


def _with_placement(layer: LayerSpec, placement: str) -> LayerSpec:
    def placed(part: Any) -> Any:
        if isinstance(part, ParallelExpertsSpec):
            return replace(part, moe=placed(part.moe))
        return replace(part, placement=placement)

    return replace(layer, **{name: placed(part) for name, part in _moe_parts(layer).items()})


def _attention_split_error(attention: AnyAttentionSpec | None, ranks: int) -> str | None:
    if attention is None:
        return None
    if attention.heads % ranks:
        return f"does not divide the model's {attention.heads} attention heads"
    if isinstance(attention, CompressedAttentionSpec) and attention.groups % ranks:
        return f"does not divide the model's {attention.groups} groups of heads (o_groups)"
    if not isinstance(attention, AttentionSpec | ConvolvedAttentionSpec):
        return None
    kv_heads = attention.kv_heads
    if kv_heads % ranks and ranks % kv_heads:
        return f"neither divides the model's {kv_heads} key-value heads nor is a multiple of them"
    if kv_heads % ranks and getattr(attention, "qk_norm_over", "") == "all":
        return f"is more than the model's {kv_heads} key-value heads, which are normalised together"
    return None


def _mlp_split_error(mlp: MlpSpec | MoeSpec | None, ranks: int) -> str | None:
    shared = mlp.shared if isinstance(mlp, MoeSpec) else None
    if shared is not None and shared.width % ranks:
        return f"does not divide the shared expert's intermediate size {shared.width}"
    if isinstance(mlp, MoeSpec) and mlp.placement:
        return None if mlp.experts >= ranks else f"is more than a layer's {mlp.experts} experts"
    if mlp is not None and mlp.width % ranks:
        kind = "experts'" if isinstance(mlp, MoeSpec) else "model's"
        return f"does not divide the {kind} intermediate size {mlp.width}"
    return None
