"""GPT-2: learned positions, layer norms with bias, one fused tensor for query, key and value,
weights transposed.
"""

from dataclasses import replace

from core.api import Entry, hookimpl
from core.model_spec.attention import AttentionSpec, NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, with_fields
from core.model_spec.layer import LayerSpec, MlpSpec
from core.model_spec.names import WeightNames

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


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("GPT2LMHeadModel", "builtin_plugins.models.gpt2:spec", "GPT-2"),
        Entry("OpenAIGPTLMHeadModel", "builtin_plugins.models.gpt2:gpt1", "GPT 1"),
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
        LayerSpec(
            attention=replace(attention, scale=base / (index + 1 if by_layer else 1)),
            mlp=mlp,
            attention_in=norm,
            mlp_in=norm,
        )
        for index in range(facts.num_layers("n_layer"))
    )
    return DecoderSpec(
        vocab_size=facts.count("vocab_size"),
        hidden_size=hidden,
        max_positions=positions,
        learned_positions=positions,
        layers=layers,
        norm=norm,
        tied_head=facts.flag("tie_word_embeddings", True),
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
