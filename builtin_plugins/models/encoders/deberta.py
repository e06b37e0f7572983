"""DeBERTa 2 and 3: attention in which content and distance look at each other, so that it is a module of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from builtin_plugins.models.encoders.heads import IGNORED, bare, pooling
from core.api import BuildContext, DenseSpec, MlpSpec, Model, ModelError, ModelFacts, NormSpec, PoolingSpec, WeightNames

NAMES = WeightNames(
    layer="deberta.encoder.layer.{}",
    q="attention.self.query_proj",
    k="attention.self.key_proj",
    v="attention.self.value_proj",
    o="attention.output.dense",
    attention_out="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    mlp_out="output.LayerNorm",
    # Behind `deberta.` there is no pooler: the one of its classifier stands beside it.
    rename=bare("deberta", "embeddings", "encoder"),
    ignored=(*IGNORED, "lm_predictions.*", "mask_predictions.*"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DebertaSpec:
    """The facts of one DeBERTa."""

    vocab_size: int
    hidden_size: int
    embed_size: int
    learned_positions: int
    """Rows of the table of positions that is added to the embedding; 0: there is none."""
    token_types: int
    num_layers: int
    heads: int
    norm: NormSpec
    mlp: MlpSpec
    span: int
    """Distances told apart on each side."""
    most: int
    """The distance from which on all look alike, where there are buckets; 0: there are none."""
    content_to_position: bool
    position_to_content: bool
    share_keys: bool
    """Distances go through the products of queries and keys instead of their own."""
    norm_distances: bool
    conv_size: int
    """Tokens the convolution beside the first layer sees; 0: there is none."""
    conv_groups: int
    conv_activation: str
    pooling: PoolingSpec | None
    bidirectional: bool = True

    def build(self, context: BuildContext) -> Model:
        """Return the module."""
        from builtin_plugins.models.encoders.deberta_layers import Deberta  # lazy: torch is slow to import

        return Deberta(self, context)


def deberta(hf_config: object) -> DebertaSpec:
    """Return the facts of a DeBERTa 2 config."""
    facts = ModelFacts(hf_config)
    hidden, positions = facts.count("hidden_size"), facts.num_positions(default=512)
    if not facts.flag("relative_attention"):
        raise ModelError("relative_attention is off in config.json, which this architecture does not serve.")
    kinds = facts.get("pos_att_type") or []
    kinds = kinds.lower().split("|") if isinstance(kinds, str) else list(kinds)
    most = facts.get("max_relative_positions", -1)
    most = positions if type(most) is not int or most < 1 else most
    buckets = facts.get("position_buckets", -1)
    bucketed = type(buckets) is int and buckets > 0
    positioned = facts.flag("position_biased_input", True)
    context = DenseSpec(
        name="pooler.dense",
        width=facts.count("pooler_hidden_size", hidden),
        activation=facts.activation("pooler_hidden_act", "gelu"),
    )
    return DebertaSpec(
        vocab_size=facts.count("vocab_size"),
        hidden_size=hidden,
        embed_size=facts.count("embedding_size", hidden),
        learned_positions=positions if positioned else 0,
        token_types=facts.count("type_vocab_size", 0, least=0),
        num_layers=facts.num_layers(),
        heads=facts.count("num_attention_heads"),
        norm=facts.layer_norm(eps=1e-7),
        mlp=facts.mlp(activation=facts.activation(default="gelu"), gated=False, bias=True),
        span=buckets if bucketed else most,
        most=most if bucketed else 0,
        content_to_position="c2p" in kinds,
        position_to_content="p2c" in kinds,
        share_keys=facts.flag("share_att_key"),
        norm_distances="layer_norm" in str(facts.get("norm_rel_ebd", "none")).lower(),
        conv_size=facts.count("conv_kernel_size", 0, least=0),
        conv_groups=facts.count("conv_groups", 1),
        conv_activation=str(facts.get("conv_act", "tanh")),
        pooling=replace(pooling(facts, (context,)), pooler="cls"),
    )
