"""Facts of DeBERTa 2 and 3, and the names of their weights."""

from __future__ import annotations

from dataclasses import dataclass

from builtin_plugins.models.encoders.heads import IGNORED, bare
from core.model_spec.attention import NormSpec
from core.model_spec.layer import MlpSpec
from core.model_spec.names import WeightNames
from core.model_spec.pooling import PoolingSpec

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
    # The classifier's pooler is not under `deberta.`.
    rename=bare("deberta", "embeddings", "encoder"),
    ignored=(*IGNORED, "lm_predictions.*", "mask_predictions.*"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DebertaFacts:
    """The facts of a DeBERTa model."""

    vocab_size: int
    hidden_size: int
    embed_size: int
    learned_positions: int
    """Rows of the absolute position embedding; 0: none."""
    token_types: int
    num_layers: int
    heads: int
    norm: NormSpec
    mlp: MlpSpec
    span: int
    """Distinct distances on each side."""
    max_distance: int
    """Distance from which all share one bucket; 0: no buckets."""
    content_to_position: bool
    position_to_content: bool
    share_keys: bool
    """Whether distances use the query and key projections instead of their own."""
    norm_distances: bool
    conv_size: int
    """Kernel size of the convolution parallel to the first layer; 0: none."""
    conv_groups: int
    conv_activation: str
    pooling: PoolingSpec | None
    bidirectional: bool = True
