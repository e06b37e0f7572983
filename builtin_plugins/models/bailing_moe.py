"""Ling and Ring (BailingMoe 1 and 2), DeepSeek 1: Llama's attention with a shared expert."""

from dataclasses import replace
from typing import Any

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MlpSpec, MoeSpec
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.bailing_moe"
BAILING = WeightNames(
    embed="model.word_embeddings",
    qkv="attention.query_key_value",
    o="attention.dense",
    q_norm="attention.query_layernorm",
    k_norm="attention.key_layernorm",
    correction_bias="mlp.gate.expert_bias",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("DeepseekForCausalLM", f"{HERE}:deepseek", "DeepSeek MoE 16B"),
        Entry("BailingMoeForCausalLM", f"{HERE}:bailing", "Ling and Ring, 1 and 1.5"),
        Entry("BailingMoeV2ForCausalLM", f"{HERE}:bailing_v2", "Ling and Ring 2.0"),
    ]


def deepseek(hf_config: object) -> DecoderSpec:
    """Return the facts of a DeepSeek 1 config: softmax scores, normalised only on request."""
    facts = ModelFacts(hf_config)
    bias = facts.flag("attention_bias")
    experts = _experts(facts, "n_routed_experts", "n_shared_experts")
    every = facts.count("moe_layer_freq", 1)
    return _decoder(facts, experts, WeightNames(), every=every, qkv_bias=bias, out_bias=bias)


def bailing(hf_config: object) -> DecoderSpec:
    """Return the facts of a BailingMoe config; `norm_head` normalises the head's columns."""
    facts = ModelFacts(hf_config)
    bias = facts.flag("use_bias")
    qkv_bias = bias or facts.flag("use_qkv_bias")
    experts = _experts(facts, "num_experts", "num_shared_experts")
    spec = _decoder(facts, experts, BAILING, qkv_bias=qkv_bias, out_bias=bias)
    return replace(spec, head_normalized="columns" if facts.flag("norm_head") else "")


def bailing_v2(hf_config: object) -> DecoderSpec:
    """Return the facts of a BailingMoe 2 config: sigmoid scores, groups, norms of the heads."""
    facts = ModelFacts(hf_config)
    facts.refuse("norm_head")
    bias = facts.flag("use_bias")
    experts = replace(
        _experts(facts, "num_experts", "num_shared_experts"),
        score="sigmoid",
        correction_bias=facts.flag("moe_router_enable_expert_bias", True),
        groups=facts.count("n_group", 1),
        topk_groups=facts.count("topk_group", 1),
        router_fp32=True,
    )
    qk_norm = facts.norm() if facts.flag("use_qk_norm") else None
    qkv_bias = bias or facts.flag("use_qkv_bias")
    # MTP layers follow the decoder's, and are not used.
    names = replace(BAILING, ignored=(*BAILING.ignored, f"model.layers.{facts.num_layers()}.*"))
    attention = {"qk_norm": qk_norm, "qkv_bias": qkv_bias, "out_bias": bias}
    return _decoder(facts, experts, names, every=1, **attention)


def _experts(facts: ModelFacts, count: str, shared: str) -> MoeSpec:
    """Return experts with softmax scores; the strings are the config's names."""
    width = facts.count("moe_intermediate_size")
    activation: dict[str, Any] = {"activation": facts.activation()}
    num_shared = facts.count(shared, 0, least=0)
    shared_width = facts.count("moe_shared_expert_intermediate_size", width) * num_shared
    return MoeSpec(
        experts=facts.count(count),
        top_k=facts.count("num_experts_per_tok"),
        width=width,
        renormalize=facts.flag("norm_topk_prob"),
        **activation,
        scale=facts.number("routed_scaling_factor", 1.0),
        shared=MlpSpec(width=shared_width, **activation) if num_shared else None,
    )


def _decoder(
    facts: ModelFacts, experts: MoeSpec, names: WeightNames, *, every: int = 1, **attention: Any
) -> DecoderSpec:
    """Return a decoder with dense first layers and experts in every `every`-th later one."""
    norm = facts.norm()
    dense = facts.count("first_k_dense_replace", 0, least=0)
    norms: dict[str, Any] = {"attention_in": norm, "mlp_in": norm}
    mlps = (facts.mlp(), experts)
    mixer = facts.attention(**attention)
    layers = tuple(
        LayerSpec(attention=mixer, **norms, mlp=mlps[i >= dense and i % every == 0])
        for i in range(facts.num_layers())
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=names)
