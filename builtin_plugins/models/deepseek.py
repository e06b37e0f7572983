"""DeepSeek and its variants: latent attention (MLA), grouped experts and a shared expert. Dense
models with MLA: MiniCPM 3 and Youtu-LLM.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from core.api import Entry, ModelError, hookimpl
from core.model_spec.attention import IndexerSpec, LatentAttentionSpec, Temperature
from core.model_spec.decoder import DecoderSpec, mtp_layer
from core.model_spec.facts import ModelFacts, latent_attention, renamed
from core.model_spec.layer import MlpSpec, MoeSpec, pre_norm_layer
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.deepseek"
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
        Entry(
            "Dots3NoteForCausalLM",
            "builtin_plugins.models.dots3_note:spec",
            "Dots 3 Note's text model: sparse attention, windows",
        ),
        Entry("Glm4MoeLiteForCausalLM", f"{HERE}:glm4_moe_lite", "GLM 4.7 Flash"),
        Entry("GlmMoeDsaForCausalLM", f"{HERE}:glm_moe_dsa", "GLM 5: sparse attention"),
        Entry("PanguUltraMoEForCausalLM", f"{HERE}:pangu_ultra", "openPangu Ultra MoE"),
        Entry("MiniCPM3ForCausalLM", f"{HERE}:minicpm3", "MiniCPM 3"),
        Entry("YoutuForCausalLM", f"{HERE}:youtu", "Youtu-LLM"),
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
    rope = facts.rope(
        facts.count("qk_rope_head_dim"), interleaved=facts.flag("rope_interleave", True)
    )
    attention = latent_attention(facts, rope=rope)
    layer = pre_norm_layer(norm, attention=attention, mlp=facts.mlp())
    return DecoderSpec(**facts.decoder(layer, tied=True), norm=norm)


def _attention(facts: ModelFacts) -> LatentAttentionSpec:
    """Return latent attention with the config's choice of interleaved RoPE."""
    rope = facts.rope(
        facts.count("qk_rope_head_dim"), interleaved=facts.flag("rope_interleave", True)
    )
    return latent_attention(facts, rope=rope)


def latent_experts(
    facts: ModelFacts, *, groups: tuple[int, int] = (1, 1), **changes: Any
) -> MoeSpec:
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


def latent_decoder(
    facts: ModelFacts,
    attention: LatentAttentionSpec,
    experts: MoeSpec,
    *,
    dense: int,
    dense_name: str = "first_k_dense_replace",
    every: int = 1,
    eps: float = 1e-6,
    mlp_bias: bool = False,
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
    mlps = {"dense": facts.mlp(bias=mlp_bias), "sparse": experts}
    layers = tuple(pre_norm_layer(norm, attention=attention, mlp=mlps[kind]) for kind in kinds)
    names = WeightNames(ignored=("*.rotary_emb.inv_freq", f"model.layers.{num_layers}.*"))
    further = pre_norm_layer(norm, attention=attention, mlp=experts)
    has_mtp = facts.count("num_nextn_predict_layers", 0, least=0) > 0
    mtp = mtp_layer(further, norm, num_layers) if has_mtp else None
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, mtp=mtp, names=names)


def indexer_spec(facts: ModelFacts, *, heads: int, interleaved: bool) -> IndexerSpec:
    """Return the indexer of a config; `heads` is the default."""
    return IndexerSpec(
        top_k=facts.count("index_topk", 2048),
        heads=facts.count("index_n_heads", heads),
        size=facts.count("index_head_dim", 128),
        interleaved=interleaved,
    )


def shared_indexers(
    facts: ModelFacts, indexer: IndexerSpec, num_layers: int, *, every: int = 1
) -> list[IndexerSpec]:
    """Return the indexer of each layer; some layers attend to what an earlier one selected."""
    kinds = facts.get("indexer_types") or facts.get("index_topk_pattern")
    if kinds is None:
        every = facts.count("index_topk_freq", every)
        offset = facts.count("index_skip_topk_offset", 2, least=0)
        kinds = [
            "full" if max(i - offset + 1, 0) % every == 0 else "shared" for i in range(num_layers)
        ]
    kinds = [{"F": "full", "S": "shared"}.get(str(kind), str(kind)) for kind in kinds]
    if len(kinds) != num_layers or not set(kinds) <= {"full", "shared"} or kinds[0] != "full":
        raise ModelError(
            f"indexer_types in config.json: got {kinds!r:.100}; expected full or shared for each "
            f"of {num_layers} layers, full for the first. Restore the model's own config.json."
        )
    indexers: list[IndexerSpec] = []
    source = 0
    for index, kind in enumerate(kinds):
        source = index if kind == "full" else source
        own = None if kind == "full" else source
        indexers.append(replace(indexer, source_layer=own))
    return indexers


def with_indexers(spec: DecoderSpec, indexers: Sequence[IndexerSpec | None]) -> DecoderSpec:
    """Return the decoder with its layers' indexers; its MTP layer attends to all tokens."""
    attentions: list[Any] = [layer.attention for layer in spec.layers]
    layers = tuple(
        replace(layer, attention=replace(attention, indexer=indexer))
        for layer, attention, indexer in zip(spec.layers, attentions, indexers, strict=True)
    )
    mtp = spec.mtp
    if mtp is not None:
        mtp = replace(mtp, ignored=(*mtp.ignored, f"{mtp.stored}.self_attn.indexer.*"))
    return replace(spec, layers=layers, mtp=mtp)
