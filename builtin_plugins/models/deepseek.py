"""DeepSeek and its variants: latent attention (MLA), grouped experts and a shared expert. Dense
models with MLA: MiniCPM 3 and Youtu-LLM.
"""

import math
from dataclasses import replace

from core.api import Entry, hookimpl
from core.model_spec.attention import LatentAttentionSpec, Temperature
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, renamed
from core.model_spec.latent_facts import (
    indexer_spec,
    latent_attention,
    latent_decoder,
    latent_experts,
    shared_indexers,
    with_indexers,
)
from core.model_spec.layer import MoeSpec, pre_norm_layer

HERE = "builtin_plugins.models.deepseek"
DOTS = "builtin_plugins.models.dots3_note"
MISTRAL = "builtin_plugins.models.mistral_large4"
PANGU = {
    "q_lora_rank": "attention_q_lora_dim",
    "kv_lora_rank": "attention_kv_lora_dim",
    "qk_nope_head_dim": "attention_qk_dim",
    "qk_rope_head_dim": "attention_qk_rope_dim",
    "v_head_dim": "attention_v_dim",
    "first_k_dense_replace": "num_dense_layers",
    "n_routed_experts": "num_routed_experts",
    "n_shared_experts": "num_shared_experts",
}
"""DeepSeek's names of the fields of openPangu Ultra."""


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("DeepseekV2ForCausalLM", f"{HERE}:v2", "DeepSeek V2 and V2.5"),
        Entry("DeepseekV3ForCausalLM", f"{HERE}:v3", "DeepSeek V3, R1 and Kimi K2"),
        Entry("DeepseekV32ForCausalLM", f"{HERE}:v32", "DeepSeek V3.2: sparse attention"),
        Entry("AXK1ForCausalLM", f"{HERE}:axk1", "A.X K1"),
        Entry("AXK2ForCausalLM", f"{HERE}:axk2", "A.X K2: sparse attention"),
        Entry("Dots3NoteForCausalLM", f"{DOTS}:spec", "Dots 3 Note's text: sparse, with windows"),
        Entry("Dots3NoteForConditionalGeneration", f"{DOTS}:composite", "Dots 3 Note, text alone"),
        Entry("Glm4MoeLiteForCausalLM", f"{HERE}:glm4_moe_lite", "GLM 4.7 Flash"),
        Entry("GlmMoeDsaForCausalLM", f"{HERE}:glm_moe_dsa", "GLM 5: sparse attention"),
        Entry("PanguUltraMoEForCausalLM", f"{HERE}:pangu_ultra", "openPangu Ultra MoE"),
        Entry("MiniCPM3ForCausalLM", f"{HERE}:minicpm3", "MiniCPM 3"),
        Entry("YoutuForCausalLM", f"{HERE}:youtu", "Youtu-LLM"),
        Entry("Mistral4ForCausalLM", f"{HERE}:mistral4", "Mistral Small 4"),
        Entry("MistralLarge3ForCausalLM", f"{HERE}:mistral4", "Mistral Large 3"),
        Entry("MistralLarge4ForCausalLM", f"{MISTRAL}:spec", "Mistral Large 4's text"),
    ]


def v2(hf_config: object) -> DecoderSpec:
    """Return the facts of a DeepSeek V2 config: softmax scores, groups ranked by their best
    expert.
    """
    facts = ModelFacts(hf_config)
    method = facts.choice("topk_method", "greedy", ("greedy", "group_limited_greedy"))
    experts = latent_experts(
        facts, score="softmax", correction_bias=False, renormalize=False, group_top_k=1
    )
    if method == "greedy":
        experts = replace(experts, groups=1, topk_groups=1)
    bias = facts.flag("mlp_bias")
    shared = facts.mlp(width=experts.width * facts.count("n_shared_experts"), bias=bias)
    experts = replace(experts, shared=shared)
    return latent_decoder(facts, latent_attention(facts), experts, dense=0, mlp_bias=bias)


def v3(hf_config: object) -> DecoderSpec:
    """Return the facts of a DeepSeek V3 config."""
    facts = ModelFacts(hf_config)
    return latent_decoder(facts, _attention(facts), latent_experts(facts, groups=(8, 4)), dense=3)


def v32(hf_config: object) -> DecoderSpec:
    """Return the facts of a DeepSeek V3.2 config."""
    facts = ModelFacts(hf_config)
    indexer = indexer_spec(facts, heads=64, interleaved=False)
    spec = latent_decoder(
        facts, latent_attention(facts), latent_experts(facts, groups=(8, 4)), dense=3
    )
    return with_indexers(spec, [indexer] * len(spec.layers))


def axk1(hf_config: object) -> DecoderSpec:
    """Return the facts of an A.X K1 config: the experts' output is normalised."""
    facts = ModelFacts(hf_config)
    every = facts.count("moe_layer_freq", 1)
    spec = latent_decoder(
        facts, _attention(facts), latent_experts(facts, groups=(8, 4)), dense=1, every=every
    )
    layers = tuple(
        replace(layer, mlp_out=layer.mlp_in) if isinstance(layer.mlp, MoeSpec) else layer
        for layer in spec.layers
    )
    return replace(spec, layers=layers, names=replace(spec.names, mlp_out="post_mlp_layernorm"))


def axk2(hf_config: object) -> DecoderSpec:
    """Return the facts of an A.X K2 config: gated norms, and a gate in the query projection."""
    facts = ModelFacts(hf_config)
    every = facts.count("moe_layer_freq", 1)
    attention = latent_attention(facts, query_gate=True)
    experts = latent_experts(facts, outside_score=0.0)
    spec = latent_decoder(facts, attention, experts, dense=1, every=every)
    gated = facts.norm(gate_rank=facts.count("gated_norm_rank", 16))
    layers = tuple(
        replace(
            layer,
            attention_in=gated,
            mlp_in=gated if isinstance(layer.mlp, MoeSpec) else layer.mlp_in,
        )
        for layer in spec.layers
    )
    indexer = indexer_spec(facts, heads=16, interleaved=False)
    return with_indexers(replace(spec, layers=layers, mtp=None), [indexer] * len(layers))


def glm4_moe_lite(hf_config: object) -> DecoderSpec:
    """Return the facts of a GLM 4.7 Flash config; dense layers are in `mlp_layer_types` only."""
    facts = ModelFacts(hf_config)
    return latent_decoder(
        facts, _attention(facts), latent_experts(facts), dense=1, dense_name="", eps=1e-5
    )


def glm_moe_dsa(hf_config: object) -> DecoderSpec:
    """Return the facts of a GLM 5 config: some layers attend to what an earlier one selected."""
    facts = ModelFacts(hf_config)
    indexer = indexer_spec(facts, heads=32, interleaved=True)
    spec = latent_decoder(facts, latent_attention(facts), latent_experts(facts), dense=3, eps=1e-5)
    return with_indexers(spec, shared_indexers(facts, indexer, len(spec.layers)))


def pangu_ultra(hf_config: object) -> DecoderSpec:
    """Return the facts of an openPangu Ultra config: norms around each part, no expert groups."""
    facts = ModelFacts(renamed(hf_config, **PANGU))
    for unserved in ("param_sink_number", "mome_kernel_size", "sliding_window"):
        facts.refuse(unserved)  # of later openPangu models
    norm = facts.norm(eps=1e-5)
    attention = replace(_attention(facts), norm=norm)
    experts = latent_experts(facts, correction_bias=False)
    spec = replace(latent_decoder(facts, attention, experts, dense=3, eps=1e-5), mtp=None)
    if not facts.flag("sandwich_norm"):
        return spec
    layers = tuple(replace(layer, attention_out=norm, mlp_out=norm) for layer in spec.layers)
    names = replace(
        spec.names,
        attention_out="post_attention_layernorm",
        mlp_in="pre_mlp_layernorm",
        mlp_out="post_mlp_layernorm",
    )
    return replace(spec, layers=layers, names=names)


def mistral4(hf_config: object) -> DecoderSpec:
    """Return the facts of a Mistral Small 4 config: softmax scores, position-scaled queries."""
    facts = ModelFacts(hf_config)
    shared = facts.count("qk_rope_head_dim")
    whole = shared + facts.count("qk_nope_head_dim")
    rope = facts.rope(whole, share=shared / whole, interleaved=facts.flag("rope_interleave", True))
    given = facts.part("rope_parameters")
    growth = Temperature(
        given.number("llama_4_scaling_beta"), given.count("original_max_position_embeddings")
    )
    experts = latent_experts(facts, score="softmax", correction_bias=False, router_fp32=False)
    return latent_decoder(
        facts, latent_attention(facts, rope=rope, temperature=growth), experts, dense=0
    )


def minicpm3(hf_config: object) -> DecoderSpec:
    """Return the facts of a MiniCPM 3 config: embedding, residuals and logits are scaled."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    hidden = facts.count("hidden_size")
    num_layers = facts.num_layers()
    depth = facts.number_or_none("scale_depth", 1.4)
    base = facts.number_or_none("dim_model_base", 256)
    layer = pre_norm_layer(
        norm,
        attention=latent_attention(
            facts,
            rope=facts.rope(facts.count("qk_rope_head_dim")),
            value_size=facts.head_size(hidden, facts.count("num_attention_heads")),
        ),
        mlp=facts.mlp(bias=facts.flag("mlp_bias")),
        residual_scale=1.0 if depth is None else depth / math.sqrt(num_layers),
    )
    return DecoderSpec(
        **facts.decoder(tied=True),
        layers=(layer,) * num_layers,
        norm=norm,
        embed_scale=facts.number("scale_emb", 12),
        logit_scale=1.0 if base is None else base / hidden,
    )


def youtu(hf_config: object) -> DecoderSpec:
    """Return the facts of a Youtu-LLM config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    layer = pre_norm_layer(norm, attention=_attention(facts), mlp=facts.mlp())
    return DecoderSpec(**facts.decoder(layer, tied=True), norm=norm)


def _attention(facts: ModelFacts) -> LatentAttentionSpec:
    """Return latent attention with the config's choice of interleaved RoPE."""
    rope = facts.rope(
        facts.count("qk_rope_head_dim"), interleaved=facts.flag("rope_interleave", True)
    )
    return latent_attention(facts, rope=rope)
