"""Granite and HyperCLOVA X: Llama's shape with factors on embeddings, scores, residuals and logits."""

from core.api import DecoderSpec, Entry, LayerSpec, MlpSpec, ModelFacts, MoeSpec, WeightNames, hookimpl

HERE = "builtin_plugins.models.granite"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("GraniteForCausalLM", f"{HERE}:granite", "Granite 3, dense"),
        Entry("GraniteMoeForCausalLM", f"{HERE}:granite_moe", "Granite 3, mixture of experts"),
        Entry("GraniteMoeSharedForCausalLM", f"{HERE}:granite_moe", "Granite 3, experts and a shared one"),
        Entry("HyperCLOVAXForCausalLM", f"{HERE}:hyperclovax", "HyperCLOVA X SEED"),
    ]


def granite(hf_config: object) -> DecoderSpec:
    """Return the facts of a Granite config."""
    facts = ModelFacts(hf_config)
    return _alike(facts, facts.mlp(bias=facts.flag("mlp_bias")), WeightNames())


def granite_moe(hf_config: object) -> DecoderSpec:
    """Return the facts of a Granite config with experts, and perhaps an MLP beside them."""
    facts = ModelFacts(hf_config)
    shared = facts.count("shared_intermediate_size", 0, least=0)
    experts = MoeSpec(
        experts=facts.count("num_local_experts", 8),
        top_k=facts.count("num_experts_per_tok", 2),
        width=facts.count("intermediate_size"),
        activation=facts.activation(),
        shared=MlpSpec(width=shared, activation=facts.activation()) if shared else None,
    )
    names = WeightNames(
        router="block_sparse_moe.router.layer",
        expert="",
        experts_gate_up="block_sparse_moe.input_linear.weight",
        experts_down="block_sparse_moe.output_linear.weight",
        shared_gate_up="shared_mlp.input_linear",
        shared_down="shared_mlp.output_linear",
    )
    return _alike(facts, experts, names)


def _alike(facts: ModelFacts, mlp: MlpSpec | MoeSpec, names: WeightNames) -> DecoderSpec:
    norm, bias = facts.norm(), facts.flag("attention_bias")
    scale = facts.number("attention_multiplier", 1.0)
    layer = LayerSpec(
        attention=facts.attention(scale=scale, qkv_bias=bias, out_bias=bias),
        mlp=mlp,
        attention_in=norm,
        mlp_in=norm,
        residual_scale=facts.number("residual_multiplier", 1.0),
    )
    return DecoderSpec(
        **facts.decoder(),
        layers=(layer,) * facts.num_layers(),
        norm=norm,
        embed_scale=facts.number("embedding_multiplier", 1.0),
        logit_scale=1 / facts.number("logits_scaling", 1.0),
        names=names,
    )


def hyperclovax(hf_config: object) -> DecoderSpec:
    """Return the facts of a HyperCLOVA X config: norms after each part too, logits multiplied, not divided."""
    facts = ModelFacts(hf_config)
    norm, bias = facts.norm(), facts.flag("attention_bias")
    after = norm if facts.flag("use_post_norm", True) else None
    scale = facts.number("attention_multiplier", facts.heads()["head_size"] ** -0.5)
    layer = LayerSpec(
        attention=facts.attention(scale=scale, qkv_bias=bias, out_bias=bias),
        mlp=facts.mlp(bias=facts.flag("mlp_bias")),
        attention_in=norm,
        attention_out=after,
        mlp_in=norm,
        mlp_out=after,
        residual_scale=facts.number("residual_multiplier", 1.0),
    )
    return DecoderSpec(
        **facts.decoder(),
        layers=(layer,) * facts.num_layers(),
        norm=norm,
        embed_scale=facts.number("embedding_multiplier", 1.0),
        logit_scale=facts.number("logits_scaling", 1.0),
        names=WeightNames(attention_out="post_norm1", mlp_out="post_norm2"),
    )
