"""GPT 1, GPT-2 and Jais 1: one fused tensor for query, key and value, weights transposed."""

from dataclasses import replace
from typing import Any

from core.api import Entry, hookimpl
from core.model_spec.attention import AttentionSpec, NormSpec, alibi_slopes
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, with_fields
from core.model_spec.layer import MlpSpec, pre_norm_layer
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.gpt2"
NAMES = WeightNames(
    embed="transformer.wte",
    positions="transformer.wpe",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}",
    attention_in="ln_1",
    mlp_in="ln_2",
    qkv="attn.c_attn",
    o="attn.c_proj",
    up="mlp.c_fc",
    down="mlp.c_proj",
    transposed=True,
    rename=((r"^(wte|wpe|h|ln_f)\.", r"transformer.\1."),),
    ignored=("*.attn.bias", "*.attn.masked_bias"),
)
JAIS = replace(
    NAMES,
    gate="mlp.c_fc2",
    ignored=(*NAMES.ignored, "transformer.relative_pe.*"),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("GPT2LMHeadModel", f"{HERE}:spec", "GPT-2"),
        Entry("OpenAIGPTLMHeadModel", f"{HERE}:gpt1", "GPT 1"),
        Entry("JAISLMHeadModel", f"{HERE}:jais", "Jais 1"),
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a GPT-2 config."""
    facts = ModelFacts(hf_config)
    norm = NormSpec("layer", eps=facts.number("layer_norm_epsilon", 1e-5), bias=True)
    hidden = facts.count("n_embd")
    heads = facts.count("n_head")
    positions = facts.num_positions("n_positions", 1024)
    size = facts.head_size(hidden, heads)
    base = size**-0.5 if facts.flag("scale_attn_weights", True) else 1.0
    by_layer = facts.flag("scale_attn_by_inverse_layer_idx")
    attention = AttentionSpec(
        heads=heads, kv_heads=heads, head_size=size, qkv_bias=True, out_bias=True
    )
    activation = facts.activation("activation_function", "gelu_new")
    mlp = MlpSpec(
        width=facts.count("n_inner", 4 * hidden), activation=activation, gated=False, bias=True
    )
    layers = tuple(
        pre_norm_layer(
            norm, attention=replace(attention, scale=base / (index + 1 if by_layer else 1)), mlp=mlp
        )
        for index in range(facts.num_layers("n_layer"))
    )
    return DecoderSpec(
        **facts.decoder(tied=True, hidden="n_embd", positions="n_positions", length=1024),
        learned_positions=positions,
        layers=layers,
        norm=norm,
        names=NAMES,
    )


def gpt1(hf_config: object) -> DecoderSpec:
    """Return the facts of a GPT 1 config: norms of the sums, and no final norm."""
    facts = ModelFacts(hf_config)
    activation = facts.activation("afn", "gelu")
    activation = "gelu_tanh" if activation == "gelu" else activation  # GPT 1's name of it
    later = spec(with_fields(hf_config, n_positions=facts.num_positions("n_positions", 512)))
    norm = later.norm
    layer = replace(
        later.layers[0],
        mlp=MlpSpec(width=4 * later.hidden_size, activation=activation, gated=False, bias=True),
        attention_in=None,
        attention_out=norm,
        mlp_in=None,
        mlp_out=norm,
        post_norm=True,
    )
    names = replace(
        NAMES,
        embed="transformer.tokens_embed",
        positions="transformer.positions_embed",
        attention_out="ln_1",
        mlp_out="ln_2",
        rename=((r"^(tokens_embed|positions_embed|h)\.", r"transformer.\1."),),
    )
    return replace(later, layers=(layer,) * len(later.layers), norm=None, names=names)


def jais(hf_config: object) -> DecoderSpec:
    """Return the facts of a Jais config, with two spellings of its factors."""
    facts = ModelFacts(hf_config)
    facts.refuse("scale_attn_by_inverse_layer_idx")
    facts.refuse("add_cross_attention")
    is_gated = facts.get("activation_function") == "swiglu"
    known = with_fields(hf_config, activation_function="silu") if is_gated else hf_config
    later = spec(known)
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
        names=JAIS,
    )
