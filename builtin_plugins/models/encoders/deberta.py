"""DeBERTa 2 and 3: disentangled attention of content and distance, in its own module."""

from __future__ import annotations

from dataclasses import dataclass, replace

from builtin_plugins.models.encoders.deberta_facts import DebertaFacts
from builtin_plugins.models.encoders.heads import pooling
from core.api import ModelError
from core.api.models import BuildContext, Model
from core.model_spec.facts import ModelFacts
from core.model_spec.pooling import DenseSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DebertaSpec(DebertaFacts):
    """A DeBERTa, ready to be built."""

    def build(self, context: BuildContext) -> Model:
        """Return the module."""
        from builtin_plugins.models.encoders.deberta_layers import (
            Deberta,
        )  # lazy: torch is slow to import

        return Deberta(self, context)


def deberta(hf_config: object) -> DebertaSpec:
    """Return the facts of a DeBERTa 2 config."""
    facts = ModelFacts(hf_config)
    hidden = facts.count("hidden_size")
    positions = facts.num_positions(default=512)
    if not facts.flag("relative_attention"):
        raise ModelError(
            "relative_attention is off in config.json, which this architecture does not serve."
        )
    kinds = facts.get("pos_att_type") or []
    kinds = kinds.lower().split("|") if isinstance(kinds, str) else list(kinds)
    max_distance = facts.get("max_relative_positions", -1)
    max_distance = positions if type(max_distance) is not int or max_distance < 1 else max_distance
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
        span=buckets if bucketed else max_distance,
        max_distance=max_distance if bucketed else 0,
        content_to_position="c2p" in kinds,
        position_to_content="p2c" in kinds,
        share_keys=facts.flag("share_att_key"),
        norm_distances="layer_norm" in str(facts.get("norm_rel_ebd", "none")).lower(),
        conv_size=facts.count("conv_kernel_size", 0, least=0),
        conv_groups=facts.count("conv_groups", 1),
        conv_activation=str(facts.get("conv_act", "tanh")),
        pooling=replace(pooling(facts, (context,)), pooler="cls"),
    )
