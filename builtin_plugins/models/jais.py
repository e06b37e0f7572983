"""Jais 1: GPT-2 with ALiBi, a gated MLP and factors on embeddings, scores and logits."""

from dataclasses import replace

from builtin_plugins.models import gpt2
from core.api import Entry, hookimpl
from core.model_spec.attention import AttentionSpec, alibi_slopes
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MlpSpec

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
    """Return the facts of a Jais config, whose factors have two spellings."""
    facts = ModelFacts(hf_config)
    facts.refuse("scale_attn_by_inverse_layer_idx")
    facts.refuse("add_cross_attention")
    is_gated = facts.get("activation_function") == "swiglu"
    activation = "silu" if is_gated else facts.activation("activation_function", "gelu")
    by_size = facts.flag("scale_qk_dot_by_d", facts.flag("mup_scale_qk_dot_by_d"))
    hidden = facts.count("n_embd")
    heads = facts.count("n_head")
    size = facts.head_size(hidden, heads)
    alibi = facts.get("position_embedding_type") == "alibi"
    attention = AttentionSpec(
        heads=heads,
        kv_heads=heads,
        head_size=size,
        scale=size**-1.0 if by_size else size**-0.5,
        alibi=alibi_slopes(heads) if alibi else (),
        qkv_bias=True,
        out_bias=True,
    )
    width = facts.count("n_inner", 4 * hidden)
    mlp = MlpSpec(width=width, activation=activation, gated=is_gated, bias=True)
    norm = facts.layer_norm("layer_norm_epsilon")
    layer = LayerSpec(attention=attention, mlp=mlp, attention_in=norm, mlp_in=norm)
    width_scale = facts.number("mup_output_alpha", 1.0) * facts.number("mup_width_scale", 1.0)
    positions = facts.num_positions("n_positions", 1024)
    return DecoderSpec(
        vocab_size=facts.count("vocab_size"),
        hidden_size=hidden,
        max_positions=positions,
        learned_positions=0 if alibi else positions,
        layers=(layer,) * facts.num_layers("n_layer"),
        norm=norm,
        tied_head=facts.flag("tie_word_embeddings", True),
        embed_scale=facts.number("embeddings_scale", facts.number("mup_embeddings_scale", 1.0)),
        logit_scale=facts.number("width_scale", width_scale),
        names=NAMES,
    )
