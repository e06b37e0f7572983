"""Hunyuan MoE: experts with a shared expert, QK norm after RoPE."""

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MoeSpec
from core.model_spec.names import WeightNames

NAMES = WeightNames(
    q_norm="self_attn.query_layernorm",
    k_norm="self_attn.key_layernorm",
    router="mlp.gate.wg",
    shared_gate="mlp.shared_mlp.gate_proj",
    shared_up="mlp.shared_mlp.up_proj",
    shared_down="mlp.shared_mlp.down_proj",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [
        Entry(
            "HunYuanMoEV1ForCausalLM",
            "builtin_plugins.models.hunyuan_moe:spec",
            "Hunyuan, mixture of experts",
        )
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Hunyuan MoE config; counts may be per layer."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    bias = facts.flag("attention_bias")
    num_layers = facts.num_layers()
    attention = facts.attention(qk_norm=norm, qk_norm_after_rope=True, qkv_bias=bias, out_bias=bias)
    experts = facts.per_layer("num_experts")
    chosen = facts.per_layer("moe_topk")
    layers = tuple(
        LayerSpec(
            attention=attention,
            mlp=MoeSpec(
                experts=experts[i],
                top_k=chosen[i],
                width=facts.count("intermediate_size"),
                activation=facts.activation(),
                router_fp32=True,
                shared=facts.mlp(),
            ),
            attention_in=norm,
            mlp_in=norm,
        )
        for i in range(num_layers)
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)
