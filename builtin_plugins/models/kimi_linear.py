"""Kimi Linear: gated delta rule with per-channel decay, and latent attention without RoPE."""

from typing import Any

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, latent_attention
from core.model_spec.layer import LayerSpec, MlpSpec, MoeSpec
from core.model_spec.names import WeightNames
from core.model_spec.recurrent import GatedDeltaSpec

NAMES = WeightNames(
    recurrent="self_attn",
    expert_gate="w1",
    expert_up="w3",
    expert_down="w2",
    rename=((r"\.block_sparse_moe\.", ".mlp."),),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [
        Entry("KimiLinearForCausalLM", "builtin_plugins.models.kimi_linear:spec", "Kimi Linear")
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Kimi Linear config, which counts layers from 1."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    num_layers = facts.num_layers()
    given = facts.part("linear_attn_config")
    heads = given.count("num_heads", facts.count("linear_num_heads", 32))
    size = given.count("head_dim", facts.count("linear_head_dim", 128))
    delta = GatedDeltaSpec(
        heads=heads,
        key_heads=heads,
        key_size=size,
        value_size=size,
        kernel=given.count("short_conv_kernel_size", facts.count("linear_conv_kernel_dim", 4)),
        layout="low_rank",
        eps=norm.eps,
    )
    attention = latent_attention(facts, rope=None)
    kinds = facts.layer_kinds("full_attention", "linear_attention")
    if kinds is None:
        full = given.indices("full_attn_layers") or {i + 1 for i in range(4, num_layers, 4)}
        kinds = [
            "full_attention" if i + 1 in full else "linear_attention" for i in range(num_layers)
        ]
    mixers: dict[str, dict[str, Any]] = {
        "full_attention": {"attention": attention},
        "linear_attention": {"recurrent": delta},
    }
    mlps = facts.get("mlp_layer_types") or ["dense"] * facts.count(
        "first_k_dense_replace", 1, least=0
    )
    layers = tuple(
        LayerSpec(
            **mixers[kind],
            mlp=facts.mlp() if mlps[i : i + 1] == ["dense"] else _experts(facts),
            attention_in=norm,
            mlp_in=norm,
        )
        for i, kind in enumerate(kinds)
    )
    common = {**facts.decoder(), "max_positions": facts.num_positions("model_max_length", 1 << 20)}
    return DecoderSpec(**common, layers=layers, norm=norm, names=NAMES)


def _experts(facts: ModelFacts) -> MoeSpec:
    width = facts.count("moe_intermediate_size", 1024)
    return MoeSpec(
        experts=facts.count("num_experts", facts.get("num_local_experts")),
        top_k=facts.count("num_experts_per_token"),
        width=width,
        activation=facts.activation(),
        score="sigmoid",
        renormalize=facts.flag("moe_renormalize", True),
        scale=facts.number("routed_scaling_factor", 2.446),
        correction_bias=True,
        groups=facts.count("num_expert_group", 1),
        topk_groups=facts.count("topk_group", 1),
        router_fp32=True,
        shared=MlpSpec(
            width=width * facts.count("num_shared_experts", 1), activation=facts.activation()
        ),
    )
