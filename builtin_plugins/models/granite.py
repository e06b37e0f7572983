"""Granite and HyperCLOVA X: Llama's shape with factors on embeddings, scores, residuals and logits."""

from core.api import DecoderSpec, Entry, LayerSpec, ModelFacts, WeightNames, hookimpl

HERE = "builtin_plugins.models.granite"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("GraniteForCausalLM", f"{HERE}:granite", "Granite 3, dense"),
        Entry("HyperCLOVAXForCausalLM", f"{HERE}:hyperclovax", "HyperCLOVA X SEED"),
    ]


def granite(hf_config: object) -> DecoderSpec:
    """Return the facts of a Granite config."""
    facts = ModelFacts(hf_config)
    norm, bias = facts.norm(), facts.flag("attention_bias")
    scale = facts.number("attention_multiplier", 1.0)
    layer = LayerSpec(
        attention=facts.attention(scale=scale, qkv_bias=bias, out_bias=bias),
        mlp=facts.mlp(bias=facts.flag("mlp_bias")),
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
    )


def hyperclovax(hf_config: object) -> DecoderSpec:
    """Return the facts of a HyperCLOVA X config: norms after each part too, logits multiplied, not divided."""
    facts = ModelFacts(hf_config)
    norm, bias = facts.norm(), facts.flag("attention_bias")
    after = norm if facts.flag("use_post_norm", True) else None
    layer = LayerSpec(
        attention=facts.attention(scale=facts.number_or_none("attention_multiplier"), qkv_bias=bias, out_bias=bias),
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
