"""DeepSeek and its variants: latent attention (MLA), grouped experts and a shared expert."""

from dataclasses import replace
from typing import Any

from core.api import Entry, ModelError, hookimpl
from core.model_spec.attention import LatentAttentionSpec, Temperature
from core.model_spec.decoder import DecoderSpec, mtp_layer
from core.model_spec.facts import ModelFacts, latent_attention
from core.model_spec.layer import LayerSpec, MlpSpec, MoeSpec
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.deepseek"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("DeepseekV2ForCausalLM", f"{HERE}:v2", "DeepSeek V2 and V2.5"),
        Entry("DeepseekV3ForCausalLM", f"{HERE}:v3", "DeepSeek V3, R1 and Kimi K2"),
        Entry(
            "DeepseekV32ForCausalLM",
            f"{HERE}:v32",
            "DeepSeek V3.2, for contexts of up to index_topk tokens",
        ),
        Entry("AXK1ForCausalLM", f"{HERE}:axk1", "A.X K1"),
        Entry("Glm4MoeLiteForCausalLM", f"{HERE}:glm4_moe_lite", "GLM 4.7 Flash"),
        Entry(
            "GlmMoeDsaForCausalLM",
            f"{HERE}:glm_moe_dsa",
            "GLM 5, for contexts of up to index_topk tokens",
        ),
        Entry("Mistral4ForCausalLM", f"{HERE}:mistral4", "Mistral Small 4"),
    ]


def v2(hf_config: object) -> DecoderSpec:
    """Return the facts of a DeepSeek V2 config: softmax scores, groups ranked by their best
    expert.
    """
    facts = ModelFacts(hf_config)
    method = facts.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise ModelError(
            f"topk_method in config.json is {method!r:.100}; greedy and group_limited_greedy are "
            "known."
        )
    experts = _experts(
        facts, score="softmax", correction_bias=False, renormalize=False, group_top_k=1
    )
    if method == "greedy":
        experts = replace(experts, groups=1, topk_groups=1)
    return _decoder(facts, latent_attention(facts), experts, dense=0)


def v3(hf_config: object) -> DecoderSpec:
    """Return the facts of a DeepSeek V3 config."""
    facts = ModelFacts(hf_config)
    return _decoder(facts, _attention(facts), _experts(facts, groups=(8, 4)), dense=3)


def v32(hf_config: object) -> DecoderSpec:
    """Return the facts of a DeepSeek V3.2 config."""
    facts = ModelFacts(hf_config)
    spec = _decoder(facts, latent_attention(facts), _experts(facts, groups=(8, 4)), dense=3)
    return _without_indexer(facts, spec)


def axk1(hf_config: object) -> DecoderSpec:
    """Return the facts of an A.X K1 config: the experts' output is normalised."""
    facts = ModelFacts(hf_config)
    every = facts.count("moe_layer_freq", 1)
    spec = _decoder(facts, _attention(facts), _experts(facts, groups=(8, 4)), dense=1, every=every)
    layers = tuple(
        replace(layer, mlp_out=layer.mlp_in) if isinstance(layer.mlp, MoeSpec) else layer
        for layer in spec.layers
    )
    return replace(spec, layers=layers, names=replace(spec.names, mlp_out="post_mlp_layernorm"))


def glm4_moe_lite(hf_config: object) -> DecoderSpec:
    """Return the facts of a GLM 4.7 Flash config; dense layers are in `mlp_layer_types` only."""
    facts = ModelFacts(hf_config)
    return _decoder(facts, _attention(facts), _experts(facts), dense=1, dense_name="", eps=1e-5)


def glm_moe_dsa(hf_config: object) -> DecoderSpec:
    """Return the facts of a GLM 5 config."""
    facts = ModelFacts(hf_config)
    return _without_indexer(
        facts, _decoder(facts, latent_attention(facts), _experts(facts), dense=3, eps=1e-5)
    )


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
    experts = _experts(facts, score="softmax", correction_bias=False, router_fp32=False)
    return _decoder(facts, latent_attention(facts, rope=rope, temperature=growth), experts, dense=0)


def _attention(facts: ModelFacts) -> LatentAttentionSpec:
    """Return latent attention with the config's choice of interleaved RoPE."""
    rope = facts.rope(
        facts.count("qk_rope_head_dim"), interleaved=facts.flag("rope_interleave", True)
    )
    return latent_attention(facts, rope=rope)


def _experts(facts: ModelFacts, *, groups: tuple[int, int] = (1, 1), **changes: Any) -> MoeSpec:
    """Return the experts of a config, changed by `changes`; `groups` is the default."""
    width = facts.count("moe_intermediate_size")
    found: dict[str, Any] = {
        "experts": facts.count("n_routed_experts"),
        "top_k": facts.count("num_experts_per_tok"),
        "width": width,
        "activation": facts.activation(),
        "score": "sigmoid",
        "renormalize": facts.flag("norm_topk_prob", True),
        "scale": facts.number("routed_scaling_factor"),
        "correction_bias": True,
        "groups": facts.count("n_group", groups[0]),
        "topk_groups": facts.count("topk_group", groups[1]),
        "router_fp32": True,
        "shared": MlpSpec(
            width=width * facts.count("n_shared_experts"), activation=facts.activation()
        ),
    }
    return MoeSpec(**{**found, **changes})


def _decoder(
    facts: ModelFacts,
    attention: LatentAttentionSpec,
    experts: MoeSpec,
    *,
    dense: int,
    dense_name: str = "first_k_dense_replace",
    every: int = 1,
    eps: float = 1e-6,
) -> DecoderSpec:
    """Return a decoder with dense first layers, and with its MTP layer."""
    norm = facts.norm(eps=eps)
    num_layers = facts.num_layers()
    dense = facts.count(dense_name, dense, least=0) if dense_name else dense
    kinds = facts.get("mlp_layer_types")
    if kinds is None:
        kinds = ["sparse" if i >= dense and i % every == 0 else "dense" for i in range(num_layers)]
    if len(kinds) != num_layers or not set(kinds) <= {"dense", "sparse"}:
        raise ModelError(
            f"mlp_layer_types in config.json must name dense or sparse for each of {num_layers} "
            "layers."
        )
    layers = tuple(
        LayerSpec(
            attention=attention,
            mlp=experts if kind == "sparse" else facts.mlp(),
            attention_in=norm,
            mlp_in=norm,
        )
        for kind in kinds
    )
    names = WeightNames(ignored=("*.rotary_emb.inv_freq", f"model.layers.{num_layers}.*"))
    further = LayerSpec(attention=attention, mlp=experts, attention_in=norm, mlp_in=norm)
    mtp = (
        mtp_layer(further, norm, num_layers)
        if facts.count("num_nextn_predict_layers", 0, least=0)
        else None
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, mtp=mtp, names=names)


def _without_indexer(facts: ModelFacts, spec: DecoderSpec) -> DecoderSpec:
    """Return the decoder for contexts so short that each layer's indexer selects every token."""
    names = replace(spec.names, ignored=(*spec.names.ignored, "*.self_attn.indexer.*"))
    limit = "index_topk: with more, its layers choose among them, which is not computed here"
    return replace(
        spec, context_limit=facts.count("index_topk", 2048), limited_by=limit, names=names
    )
