"""Qwen3-MoE: Qwen3 with experts in all layers or in every n-th."""

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MoeSpec


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [
        Entry(
            "Qwen3MoeForCausalLM",
            "builtin_plugins.models.qwen3_moe:spec",
            "Qwen3, mixture of experts",
        )
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen3-MoE config."""
    facts = ModelFacts(hf_config)
    norm = NormSpec(eps=facts.number("rms_norm_eps", 1e-6))
    bias = facts.flag("attention_bias")
    window = facts.window(4096) if facts.flag("use_sliding_window") else None
    attention = facts.attention(qkv_bias=bias, out_bias=bias, qk_norm=norm, window=window)
    experts = MoeSpec(
        experts=facts.count("num_experts", facts.get("num_local_experts")),
        top_k=facts.count("num_experts_per_tok"),
        width=facts.count("moe_intermediate_size"),
        activation=facts.activation(),
        renormalize=facts.flag("norm_topk_prob"),
    )
    step = facts.count("decoder_sparse_step", 1)
    dense = facts.indices("mlp_only_layers")
    layers = tuple(
        LayerSpec(
            attention=attention,
            mlp=facts.mlp() if index in dense or (index + 1) % step else experts,
            attention_in=norm,
            mlp_in=norm,
        )
        for index in range(facts.num_layers())
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm)
