"""GPT-NeoX and Pythia: attention and MLP in parallel, partial rotary positions, query, key and
value fused by head.
"""

from dataclasses import replace

from core.api import Entry, hookimpl
from core.model_spec.attention import AttentionSpec, NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MlpSpec
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.gpt_neox"
NAMES = WeightNames(
    embed="gpt_neox.embed_in",
    final_norm="gpt_neox.final_layer_norm",
    head="embed_out",
    layer="gpt_neox.layers.{}",
    qkv="attention.query_key_value",
    qkv_grouped=True,
    o="attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    ignored=("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("GPTNeoXForCausalLM", f"{HERE}:spec", "GPT-NeoX and Pythia"),
        Entry("GPTNeoXJapaneseForCausalLM", f"{HERE}:japanese", "GPT-NeoX by ABEJA"),
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a GPT-NeoX config."""
    facts = ModelFacts(hf_config)
    norm = NormSpec("layer", eps=facts.number("layer_norm_eps", 1e-5), bias=True)
    heads = facts.count("num_attention_heads")
    size = facts.head_size(facts.count("hidden_size"), heads)
    rope = facts.rope(size, share=0.25, theta_name="rotary_emb_base", share_name="rotary_pct")
    bias = facts.flag("attention_bias", True)
    layer = LayerSpec(
        attention=AttentionSpec(
            heads=heads, kv_heads=heads, head_size=size, rope=rope, qkv_bias=bias, out_bias=bias
        ),
        mlp=facts.mlp(activation=facts.activation(default="gelu"), gated=False, bias=True),
        attention_in=norm,
        mlp_in=norm,
        parallel=facts.flag("use_parallel_residual", True),
    )
    layers = (layer,) * facts.num_layers()
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)


def japanese(hf_config: object) -> DecoderSpec:
    """Return the facts of a GPT-NeoX Japanese config: one bias, after the last attention."""
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm()
    size = facts.heads()["head_size"]
    rope = facts.rope(size, theta_name="rotary_emb_base", share_name="rotary_pct")
    width = facts.count("hidden_size") * facts.count("intermediate_multiple_size", 4)
    activation = facts.activation(default="gelu")
    last = facts.num_layers() - 1
    layers = tuple(
        LayerSpec(
            attention=facts.attention(rope=rope, out_bias=index == last),
            mlp=MlpSpec(width=width, activation=activation, gated=False),
            attention_in=norm,
            mlp_in=norm,
        )
        for index in range(last + 1)
    )
    names = replace(
        NAMES,
        embed="gpt_neox_japanese.embed_in",
        final_norm="gpt_neox_japanese.final_layer_norm",
        layer="gpt_neox_japanese.layers.{}",
        rename=((r"\.dense_bias$", ".dense.bias"),),
    )
    return DecoderSpec(**facts.decoder(tied=True), layers=layers, norm=norm, names=names)
