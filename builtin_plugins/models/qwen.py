"""Qwen 1: Llama with fused query, key and value with biases, and GPT-2's names."""

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.names import WeightNames

NAMES = WeightNames(
    embed="transformer.wte",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}",
    attention_in="ln_1",
    qkv="attn.c_attn",
    o="attn.c_proj",
    mlp_in="ln_2",
    gate="mlp.w2",
    up="mlp.w1",
    down="mlp.c_proj",
    ignored=("*.rotary_emb.inv_freq", "*.attn.masked_bias"),
)
LIMIT = (
    "seq_length: with more, use_dynamic_ntk and use_logn_attn change RoPE and scores by the "
    "length of the text, which is not computed here"
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("QWenLMHeadModel", "builtin_plugins.models.qwen:spec", "Qwen 1")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen 1 config; `intermediate_size` counts gate and up together."""
    facts = ModelFacts(hf_config)
    facts.refuse("visual")
    norm = facts.norm("layer_norm_epsilon")
    bias = not facts.flag("no_bias", True)
    size = facts.count("kv_channels", 128)
    rope = facts.rope(size, theta_name="rotary_emb_base", share_name="rotary_pct")
    width = facts.count("intermediate_size") // 2
    layer = LayerSpec(
        attention=facts.attention(head_size=size, rope=rope, qkv_bias=True, out_bias=bias),
        mlp=facts.mlp(width=width, activation="silu", bias=bias),
        attention_in=norm,
        mlp_in=norm,
    )
    trained = facts.num_positions("seq_length", facts.num_positions())
    scaled = facts.flag("use_dynamic_ntk", True) or facts.flag("use_logn_attn", True)
    decoder = {**facts.decoder(), "layers": (layer,) * facts.num_layers(), "names": NAMES}
    limit = {"context_limit": trained, "limited_by": LIMIT} if scaled else {}
    return DecoderSpec(**decoder, **limit, norm=norm)
