"""Kimi Linear and Ling 3: gated delta rule with decay per channel, and latent attention."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.api import Entry, ModelError, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, with_fields
from core.model_spec.latent_facts import latent_attention
from core.model_spec.layer import MlpSpec, MoeSpec, pre_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.recurrent import GatedDeltaSpec

HERE = "builtin_plugins.models.kimi_linear"
KIMI = WeightNames(
    recurrent="self_attn",
    expert_gate="w1",
    expert_up="w3",
    expert_down="w2",
    rename=((r"\.block_sparse_moe\.", ".mlp."),),
)
LING = WeightNames(
    embed="model.word_embeddings",
    recurrent="self_attn",
    attention_gate="self_attn.g_proj",
    correction_bias="mlp.gate.expert_bias",
    rename=((r"\.attention\.", ".self_attn."), (r"\.self_attn\.dense\.", ".self_attn.o_proj.")),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("KimiLinearForCausalLM", f"{HERE}:spec", "Kimi Linear"),
        Entry("BailingHybridForCausalLM", f"{HERE}:bailing_hybrid", "Ling 3"),
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Kimi Linear config, which counts layers from 1; latent attention
    without RoPE.
    """
    facts = ModelFacts(hf_config)
    given = facts.part("linear_attn_config")
    heads = given.count("num_heads", facts.count("linear_num_heads", 32))
    size = given.count("head_dim", facts.count("linear_head_dim", 128))
    norm = facts.norm(eps=1e-5)
    delta = _delta(
        facts,
        heads,
        size,
        kernel=given.count("short_conv_kernel_size", facts.count("linear_conv_kernel_dim", 4)),
        layout="low_rank",
        eps=norm.eps,
    )
    num_layers = facts.num_layers()
    full = given.indices("full_attn_layers") or {i + 1 for i in range(4, num_layers, 4)}
    dense = facts.count("first_k_dense_replace", 1, least=0)
    experts = _experts(facts, width=1024, groups=(1, 1), scale=2.446)
    mlps = ["dense" if i < dense else "sparse" for i in range(num_layers)]
    mixers = {"attention": latent_attention(facts, rope=None), "recurrent": delta}
    return _decoder(facts, mixers, full, experts, mlps, KIMI, 1 << 20)


def bailing_hybrid(hf_config: object) -> DecoderSpec:
    """Return the facts of a Ling 3 config: bounded decay, a gate per head of latent attention."""
    facts = ModelFacts(with_fields(hf_config, q_lora_rank=None))
    heads = facts.count("linear_num_heads", facts.count("num_attention_heads"))
    # transformers saves the rotary size as head_dim, and this one under a name of its own.
    size = facts.count("linear_head_dim", facts.get("head_dim", 128))
    floor = facts.negative("kda_lower_bound", -5.0)
    delta = _delta(
        facts,
        heads,
        size,
        kernel=facts.count("linear_conv_kernel_dim", facts.get("short_conv_kernel_size", 4)),
        layout="full_rank",
        decay_floor=floor if facts.flag("kda_safe_gate", True) else None,
        eps=facts.norm().eps,
    )
    num_layers = facts.num_layers()
    every = facts.count("layer_group_size", 6)
    full = {i + 1 for i in range(every - 1, num_layers, every)}
    dense = facts.count("first_k_dense_replace", 2, least=0)
    experts = _experts(facts, width=768, groups=(8, 4), scale=2.5)
    mlps = ["dense" if i < dense else "sparse" for i in range(num_layers)]
    rope = facts.rope(facts.count("qk_rope_head_dim"), theta=6e6, interleaved=True)
    mixers = {"attention": latent_attention(facts, rope=rope, gate=True), "recurrent": delta}
    # MTP layers follow the decoder's, and are not used.
    names = replace(LING, ignored=(*LING.ignored, f"model.layers.{num_layers}.*"))
    return _decoder(facts, mixers, full, experts, mlps, names, 1 << 18, eps=1e-6)


def _delta(facts: ModelFacts, heads: int, size: int, **others: Any) -> GatedDeltaSpec:
    others |= {"heads": heads, "key_heads": heads, "key_size": size, "value_size": size}
    return GatedDeltaSpec(activation=facts.activation(), **others)


def _decoder(
    facts: ModelFacts,
    mixers: Mapping[str, Any],
    full: Collection[int],
    experts: MoeSpec,
    mlps: Sequence[str],
    names: WeightNames,
    positions: int,
    eps: float = 1e-5,
) -> DecoderSpec:
    """Return layers of two kinds; `full` has the numbers of those with attention, from 1.

    A config that lists the kinds of layers and MLPs has the last word.
    """
    norm = facts.norm(eps=eps)
    kinds = facts.layer_kinds("full_attention", "linear_attention") or [
        "full_attention" if i + 1 in full else "linear_attention" for i in range(len(mlps))
    ]
    mlps = facts.get("mlp_layer_types") or mlps
    if len(mlps) != len(kinds):
        raise ModelError(f"mlp_layer_types: got {len(mlps)} kinds; expected {len(kinds)} layers.")
    parts = {"full_attention": "attention", "linear_attention": "recurrent"}
    layers = tuple(
        pre_norm_layer(
            norm,
            **{parts[kind]: mixers[parts[kind]]},
            mlp=facts.mlp() if mlp == "dense" else experts,
        )
        for kind, mlp in zip(kinds, mlps, strict=True)
    )
    length = facts.num_positions("model_max_length", facts.num_positions(default=positions))
    common = {**facts.decoder(), "max_positions": length}
    return DecoderSpec(**common, layers=layers, norm=norm, names=names)


def _experts(facts: ModelFacts, *, width: int, groups: tuple[int, int], scale: float) -> MoeSpec:
    """Return sigmoid experts with a shared one; the config's fields have two spellings."""
    width = facts.count("moe_intermediate_size", width)
    shared = facts.count("num_shared_experts", facts.get("n_shared_experts", 1))
    return MoeSpec(
        experts=facts.count("num_experts", facts.get("num_local_experts")),
        top_k=facts.count("num_experts_per_token", facts.get("num_experts_per_tok", 8)),
        width=width,
        activation=facts.activation(),
        score="sigmoid",
        renormalize=facts.flag("moe_renormalize", facts.flag("norm_topk_prob", True)),
        scale=facts.number("routed_scaling_factor", scale),
        correction_bias=True,
        groups=facts.count("num_expert_group", facts.get("n_group", groups[0])),
        topk_groups=facts.count("topk_group", groups[1]),
        router_fp32=True,
        shared=MlpSpec(width=width * shared, activation=facts.activation()),
    )
