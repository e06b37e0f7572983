"""LFM2 and LFM3: gated short convolutions, attention in some layers, experts in larger models."""

from dataclasses import replace
from typing import Any

from builtin_plugins.models.mistral import EXPERTS_IN_MEMORY
from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, with_fields
from core.model_spec.layer import LayerSpec, MlpSpec, MoeSpec, pre_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.recurrent import GatedConvSpec

HERE = "builtin_plugins.models.lfm2"
NAMES = WeightNames(
    recurrent="conv",
    attention_in="operator_norm",
    mlp_in="ffn_norm",
    final_norm="model.embedding_norm",
    o="self_attn.out_proj",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
    router="feed_forward.gate",
    correction_bias="feed_forward.expert_bias",
    expert="feed_forward.experts.{}",
    expert_gate="w1",
    expert_up="w3",
    expert_down="w2",
    rename=EXPERTS_IN_MEMORY,
    experts_gate_up="feed_forward.experts.gate_up_proj",
    experts_down="feed_forward.experts.down_proj",
)
LFM3 = replace(
    NAMES,
    attention_out="post_operator_norm",
    mlp_out="post_ffn_norm",
    o="self_attn.o_proj",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    rename=((r"\.self_attn\.g_proj\.", ".self_attn.gate_proj."),),
)
LFM3_ROPE = {
    "sliding_attention": {"rope_theta": 1e4},
    "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.5,
    },
}
"""Rotary embeddings of LFM3 configs that state none."""


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("Lfm2ForCausalLM", f"{HERE}:lfm2", "LFM2"),
        Entry("Lfm2MoeForCausalLM", f"{HERE}:lfm2_moe", "LFM2, mixture of experts"),
        Entry("Lfm3ForCausalLM", f"{HERE}:lfm3", "LFM3"),
    ]


def lfm2(hf_config: object) -> DecoderSpec:
    """Return the facts of an LFM2 config; its MLP width is adjusted by default."""
    facts = ModelFacts(hf_config)
    width = facts.count("block_ff_dim", facts.get("intermediate_size"))
    if facts.flag("block_auto_adjust_ff_dim", True):
        width = int(2 * width / 3)
        unit = facts.count("block_multiple_of", 256)
        factor = facts.number_or_none("block_ffn_dim_multiplier", 1.0)
        if factor is not None:
            width = -(-int(factor * width) // unit) * unit
    return _decoder(facts, [MlpSpec(width=width)] * facts.num_layers())


def lfm2_moe(hf_config: object) -> DecoderSpec:
    """Return the facts of an LFM2 config with experts after the first layers."""
    facts = ModelFacts(hf_config)
    experts = MoeSpec(
        experts=facts.count("num_experts", facts.get("num_local_experts", 32)),
        top_k=facts.count("num_experts_per_tok", 4),
        width=facts.count("moe_intermediate_size", 1792),
        score="sigmoid",
        renormalize=facts.flag("norm_topk_prob", True),
        scale=facts.number("routed_scaling_factor", 1.0),
        correction_bias=facts.flag("use_expert_bias", True),
    )
    dense = facts.count("num_dense_layers", 2, least=0)
    plain = MlpSpec(width=facts.count("intermediate_size"))
    return _decoder(facts, [plain if i < dense else experts for i in range(facts.num_layers())])


def _decoder(facts: ModelFacts, mlps: list[MlpSpec] | list[MlpSpec | MoeSpec]) -> DecoderSpec:
    norm = facts.norm("norm_eps", 1e-5)
    heads = facts.heads()
    attention = facts.attention(
        **heads, rope=facts.rope(heads["head_size"], theta=1e6), qk_norm=norm
    )
    conv = GatedConvSpec(kernel=facts.count("conv_L_cache", 3), bias=facts.flag("conv_bias"))
    kinds = facts.layer_kinds("full_attention", "conv")
    if kinds is None:
        full = (
            range(len(mlps))
            if facts.get("full_attn_idxs") is None
            else facts.indices("full_attn_idxs")
        )
        kinds = ["full_attention" if i in full else "conv" for i in range(len(mlps))]
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=attention if kind == "full_attention" else None,
            recurrent=conv if kind == "conv" else None,
            mlp=mlp,
        )
        for kind, mlp in zip(kinds, mlps, strict=True)
    )
    tied = facts.flag("tie_embedding", facts.flag("tie_word_embeddings", True))
    return DecoderSpec(
        **{**facts.decoder(), "tied_head": tied}, layers=layers, norm=norm, names=NAMES
    )


def lfm3(hf_config: object) -> DecoderSpec:
    """Return the facts of an LFM3 config: windows, a gate per head, norms after each sublayer."""
    stated = getattr(hf_config, "rope_parameters", None)
    facts = ModelFacts(with_fields(hf_config, rope_parameters=stated or LFM3_ROPE))
    norm = facts.norm("norm_eps", 1e-5)
    heads = facts.heads(128)
    bias = facts.flag("attention_bias")
    gate = facts.flag("use_attention_gate", True)
    common = {**heads, "qk_norm": norm, "qkv_bias": bias, "out_bias": bias}
    common |= {"gate": gate, "gate_per_head": gate}
    kernel = facts.count("conv_L_cache", 7)
    conv = GatedConvSpec(kernel=kernel, bias=facts.flag("conv_bias"))
    mixers: dict[str, dict[str, Any]] = {"conv": {"recurrent": conv}}
    windows = {"full_attention": None, "sliding_attention": facts.window(256)}
    for kind, window in windows.items():
        rope = facts.rope(heads["head_size"], layer_type=kind)
        mixers[kind] = {"attention": facts.attention(**common, rope=rope, window=window)}
    kinds = facts.layer_kinds(*mixers)
    if kinds is None:
        pattern = ("sliding_attention", "conv", "full_attention", "conv")
        kinds = ["conv" if i == 0 else pattern[i % 4] for i in range(facts.num_layers())]
    after = norm if facts.flag("use_sandwich_norm", True) else None
    norms: dict[str, Any] = {"attention_in": norm, "attention_out": after}
    norms |= {"mlp_in": norm, "mlp_out": after, "mlp": facts.mlp(activation="silu")}
    layers = tuple(LayerSpec(**mixers[kind], **norms) for kind in kinds)
    return DecoderSpec(**facts.decoder(tied=True), layers=layers, norm=norm, names=LFM3)
