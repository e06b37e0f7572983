"""Jais 1: GPT-2 with ALiBi, a gated MLP and factors on embeddings, scores and logits."""

from dataclasses import replace
from typing import Any

from builtin_plugins.models import gpt2
from core.api import Entry, hookimpl
from core.model_spec.attention import alibi_slopes
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, with_fields

NAMES = replace(
    gpt2.NAMES,
    gate="mlp.c_fc2",
    ignored=(*gpt2.NAMES.ignored, "transformer.relative_pe.*"),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("JAISLMHeadModel", "builtin_plugins.models.jais:spec", "Jais 1")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Jais config, with two spellings of its factors."""
    facts = ModelFacts(hf_config)
    facts.refuse("scale_attn_by_inverse_layer_idx")
    facts.refuse("add_cross_attention")
    is_gated = facts.get("activation_function") == "swiglu"
    known = with_fields(hf_config, activation_function="silu") if is_gated else hf_config
    later = gpt2.spec(known)
    layer = later.layers[0]
    attention: Any = layer.attention
    if facts.flag("scale_qk_dot_by_d", facts.flag("mup_scale_qk_dot_by_d")):
        attention = replace(attention, scale=1 / attention.head_size)
    is_alibi = facts.get("position_embedding_type") == "alibi"
    if is_alibi:
        attention = replace(attention, alibi=alibi_slopes(attention.heads))
    mlp: Any = layer.mlp
    layer = replace(layer, attention=attention, mlp=replace(mlp, gated=is_gated))
    width_scale = facts.number("mup_output_alpha", 1.0) * facts.number("mup_width_scale", 1.0)
    return replace(
        later,
        layers=(layer,) * len(later.layers),
        learned_positions=0 if is_alibi else later.learned_positions,
        embed_scale=facts.number("embeddings_scale", facts.number("mup_embeddings_scale", 1.0)),
        logit_scale=facts.number("width_scale", width_scale),
        names=NAMES,
    )
