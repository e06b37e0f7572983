"""DeepSeek V4 and Hunyuan 4: several residual streams, and attention to few of many keys."""

from dataclasses import replace
from typing import Any, Final, Literal

from core.api import Entry, ModelError, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.compressed import (
    CompressedAttentionSpec,
    HyperConnectionSpec,
    SelectorSpec,
)
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, with_fields
from core.model_spec.latent_facts import (
    indexer_spec,
    latent_attention,
    latent_decoder,
    latent_experts,
    shared_indexers,
    with_indexers,
)
from core.model_spec.layer import MlpSpec, MoeSpec, pre_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.rope import RopeSpec, YarnScaling

HERE = "builtin_plugins.models.deepseek_v4"
WINDOWED: Final = "sliding_attention"
SPARSE: Final = "compressed_sparse_attention"
RATES: Final = {WINDOWED: 0, SPARSE: 4, "heavily_compressed_attention": 128}
"""Kinds of layers, with their tokens per compressed key; published configs name only these."""
SCORES: Final[dict[str, Literal["softmax", "sigmoid", "sqrt_softplus"]]] = {
    "softmax": "softmax",
    "sigmoid": "sigmoid",
    "sqrtsoftplus": "sqrt_softplus",
}
DEEPSEEK = WeightNames(
    attention_in="attn_norm",
    mlp_in="ffn_norm",
    router="ffn.gate",
    correction_bias="ffn.gate.bias",
    hashed_experts="ffn.gate.tid2eid",
    expert="ffn.experts.{}",
    expert_gate="w1",
    expert_up="w3",
    expert_down="w2",
    experts_gate_up="ffn.experts.gate_up_proj",
    experts_down="ffn.experts.down_proj",
    shared_gate="ffn.shared_experts.w1",
    shared_up="ffn.shared_experts.w3",
    shared_down="ffn.shared_experts.w2",
    rename=(
        (r"^(layers|norm|mtp)\.", r"model.\1."),
        (r"^(?:model\.)?embed\.", "model.embed_tokens."),
        (r"^head\.", "lm_head."),
        (r"^(?:model\.)?hc_head[._](?:hc_)?", "model.hc_head_"),
        (r"\.attn\.kv_norm\.", ".attn.norm."),
    ),
    ignored=("mtp.*", "model.mtp.*"),
)
HUNYUAN: Final[dict[str, Any]] = {
    "attention_gate": "self_attn.linear_gate",
    "sinks": "self_attn.learnable_sink_param",
    "hyper_mlp": "hc_mlp",
    "rename": (
        (r"\.hc_pre\.hc_", ".hc_"),
        (r"\.hc_(attn|mlp)_layer\.hc_", r".hc_\1_"),
        (r"\.hc_head\.hc_(?:head_)?", ".hc_head_"),
        (r"\.mlp\.(shared_experts\.)?linear_gate\.", r".mlp.\1gate_proj."),
    ),
    "ignored": ("model.mtp_layers.*",),
}


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("DeepseekV4ForCausalLM", f"{HERE}:deepseek", "DeepSeek V4: compressed keys"),
        Entry("HYV4ForCausalLM", f"{HERE}:hunyuan", "Hunyuan 4: sparse attention"),
    ]


def deepseek(hf_config: object) -> DecoderSpec:
    """Return the facts of a DeepSeek V4 config, published or saved by transformers."""
    given = getattr(hf_config, "rope_parameters", None) or {}
    if "rope_type" in given:  # not by kind of layer: for the compressed ones, as rope_scaling is
        scaling = dict(given)
        theta = scaling.pop("rope_theta", 10_000.0)
        hf_config = with_fields(
            hf_config, rope_parameters=None, rope_scaling=scaling, rope_theta=theta
        )
    facts = ModelFacts(hf_config)
    kinds = _kinds(facts)
    size = facts.count("head_dim", 512)
    share = facts.count("qk_rope_head_dim", size // 8) / size
    rotated: dict[str, Any] = {"share": share, "interleaved": True}
    plain = facts.rope(size, layer_type="main", scaled=False, **rotated)
    scaled = facts.rope(
        size, layer_type="compress", theta=160_000.0, theta_name="compress_rope_theta", **rotated
    )
    if isinstance(scaled.scaling, YarnScaling) and not facts.get("rope_parameters"):
        scaled = replace(scaled, scaling=replace(scaled.scaling, attention_factor=1.0))
    norm = facts.norm()
    hashed = facts.count("num_hash_layers", 3, least=0)
    default = (["hash_moe"] * hashed + ["moe"] * len(kinds))[: len(kinds)]
    mlps = facts.get("mlp_layer_types") or default
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=_attention(facts, kind, plain if kind == WINDOWED else scaled),
            mlp=_experts(facts, hashed=mlp == "hash_moe"),
        )
        for kind, mlp in zip(kinds, mlps, strict=True)
    )
    hyper = _hyper_connections(facts, norm, iterations=facts.count("hc_sinkhorn_iters", 20))
    return DecoderSpec(
        **facts.decoder(), layers=layers, norm=norm, hyper_connections=hyper, names=DEEPSEEK
    )


def hunyuan(hf_config: object) -> DecoderSpec:
    """Return the facts of a Hunyuan 4 config: DeepSeek's sparse attention with sinks and gates."""
    facts = ModelFacts(hf_config)
    gates: dict[str, Any] = {"gate": True, "gate_per_channel": True, "sinks": True}
    rope = facts.rope(facts.count("qk_rope_head_dim"))
    norm = facts.norm(eps=1e-5)
    attention = latent_attention(facts, rope=rope, **gates)
    experts = latent_experts(facts, limit=facts.number("swiglu_limit", 10.0))
    spec = latent_decoder(facts, attention, experts, dense=1, dense_name="", eps=1e-5)
    indexer = indexer_spec(facts, heads=16, interleaved=False)
    indexer = replace(indexer, rope_at_end=True, norm_eps=norm.eps)
    hyper = _hyper_connections(
        facts,
        norm,
        iterations=0,
        magnitude=facts.number("hc_magnitude", 2.0),
        output_eps=facts.number("hc_eps", 1e-6),
    )
    names = replace(spec.names, **HUNYUAN)
    spec = replace(spec, mtp=None, hyper_connections=hyper, names=names)
    return with_indexers(spec, shared_indexers(facts, indexer, len(spec.layers), every=4))


def _kinds(facts: ModelFacts) -> list[str]:
    """Return the kind of each layer; published configs have its rate instead."""
    num_layers = facts.num_layers()
    kinds = facts.layer_kinds(*RATES)
    if kinds is None and (rates := facts.get("compress_ratios")) is not None:
        named = {rate: kind for kind, rate in RATES.items()}
        if len(rates) < num_layers or not set(rates) <= set(named):
            raise ModelError(
                f"compress_ratios in config.json: got {rates!r:.100}; expected 0, 4 or 128 for "
                f"each of {num_layers} layers. Restore the model's own config.json."
            )
        kinds = [named[rate] for rate in rates[:num_layers]]
    heavily = list(RATES)[2]
    return kinds or [SPARSE if i >= 2 and i % 2 else heavily for i in range(num_layers)]


def _attention(facts: ModelFacts, kind: str, rope: RopeSpec) -> CompressedAttentionSpec:
    """Return the attention of a layer."""
    selector = SelectorSpec(
        top_k=facts.count("index_topk", 512),
        heads=facts.count("index_n_heads", 64),
        size=facts.count("index_head_dim", 128),
    )
    rate = RATES[kind]
    return CompressedAttentionSpec(
        heads=facts.count("num_attention_heads"),
        head_size=facts.count("head_dim", 512),
        window=facts.count("sliding_window", 128),
        query_rank=facts.count("q_lora_rank"),
        groups=facts.count("o_groups", 8),
        out_rank=facts.count("o_lora_rank", 1024),
        rope=rope,
        norm=facts.norm(),
        rate=facts.part("compress_rates").count(kind, rate) if rate else 0,
        selector=selector if kind == SPARSE else None,
    )


def _experts(facts: ModelFacts, *, hashed: bool) -> MoeSpec:
    """Return the experts of a layer, which token ids choose where they are `hashed`."""
    width = facts.count("moe_intermediate_size")
    score = facts.choice("scoring_func", "sqrtsoftplus", SCORES)
    limit = facts.number("swiglu_limit", 10.0)
    limited: dict[str, Any] = {"activation": facts.activation(), "limit": limit}
    return MoeSpec(
        **limited,
        experts=facts.count("n_routed_experts"),
        top_k=facts.count("num_experts_per_tok"),
        width=width,
        score=SCORES[score],
        scale=facts.number("routed_scaling_factor", 1.5),
        correction_bias=not hashed,
        num_hashed_tokens=facts.count("vocab_size") if hashed else 0,
        shared=MlpSpec(width=width, bias=facts.flag("mlp_bias"), **limited),
    )


def _hyper_connections(
    facts: ModelFacts, norm: NormSpec, *, iterations: int, **facts_of_outputs: float
) -> HyperConnectionSpec:
    """Return the residual streams of a config."""
    return HyperConnectionSpec(
        streams=facts.count("hc_mult", 4),
        iterations=iterations,
        norm_eps=norm.eps,
        eps=facts.number("hc_eps", 1e-6),
        **facts_of_outputs,
    )
