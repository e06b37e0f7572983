"""OLMo Hybrid: gated delta rule with negative eigenvalues, OLMo 3 attention in every fourth
layer.
"""

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, pre_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.recurrent import GatedDeltaSpec

NAMES = WeightNames(
    recurrent="linear_attn",
    # One name: recurrent layers have norms before their sublayers, attention layers after them.
    mlp_in="post_attention_layernorm",
    attention_out="post_attention_layernorm",
    mlp_out="post_feedforward_layernorm",
    rename=(
        (r"\.attention_layer_norm\.", ".input_layernorm."),
        (r"\.feedforward_layer_norm\.", ".post_attention_layernorm."),
    ),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [
        Entry("OlmoHybridForCausalLM", "builtin_plugins.models.olmo_hybrid:spec", "OLMo Hybrid")
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of an OLMo Hybrid config; a null rope_theta means no RoPE."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    bias = facts.flag("attention_bias")
    num_layers = facts.num_layers()
    heads = facts.count("num_attention_heads")
    hidden = facts.count("hidden_size")
    size = facts.head_size(hidden, heads)
    uses_rope = all(
        given.get("rope_theta", 0) is not None for given in (facts, facts.part("rope_parameters"))
    )
    attention = facts.attention(
        heads=heads,
        kv_heads=facts.count("num_key_value_heads", heads),
        head_size=size,
        rope=facts.rope(size) if uses_rope else None,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=norm,
        qk_norm_over="all",
    )
    key_heads = facts.count("linear_num_key_heads", heads)
    key_size = facts.count("linear_key_head_dim", int(0.75 * hidden / key_heads))
    delta = GatedDeltaSpec(
        heads=facts.count("linear_num_value_heads", heads),
        key_heads=key_heads,
        key_size=key_size,
        value_size=facts.count("linear_value_head_dim", 2 * key_size),
        kernel=facts.count("linear_conv_kernel_dim", 4),
        layout="apart",
        activation=facts.activation(),
        eps=1e-5,
        max_beta=2.0 if facts.flag("linear_allow_neg_eigval", True) else 1.0,
    )
    kinds = facts.layer_kinds("full_attention", "linear_attention")
    if kinds is None:
        kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(num_layers)]
        kinds[-1] = kinds[-1] if "full_attention" in kinds else "full_attention"
    attends = LayerSpec(attention=attention, mlp=facts.mlp(), attention_out=norm, mlp_out=norm)
    recurs = pre_norm_layer(norm, recurrent=delta, mlp=facts.mlp())
    layers = tuple(attends if kind == "full_attention" else recurs for kind in kinds)
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)
