"""Granite and HyperCLOVA X: Llama with factors on embeddings, scores, residuals and logits."""

from dataclasses import replace
from typing import Any

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.hybrid_facts import layer_kinds, mamba2
from core.model_spec.layer import LayerSpec, MlpSpec, MoeSpec, pre_norm_layer
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.granite"
EXPERTS = WeightNames(
    router="block_sparse_moe.router.layer",
    expert="",
    experts_gate_up="block_sparse_moe.input_linear.weight",
    experts_down="block_sparse_moe.output_linear.weight",
    shared_gate_up="shared_mlp.input_linear",
    shared_down="shared_mlp.output_linear",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("GraniteForCausalLM", f"{HERE}:granite", "Granite 3, dense"),
        Entry("GraniteMoeForCausalLM", f"{HERE}:granite_moe", "Granite 3, mixture of experts"),
        Entry("GraniteMoeSharedForCausalLM", f"{HERE}:granite_moe", "Granite 3, a shared expert"),
        Entry("GraniteMoeHybridForCausalLM", f"{HERE}:granite_hybrid", "Granite 4, with Mamba 2"),
        Entry("HyperCLOVAXForCausalLM", f"{HERE}:hyperclovax", "HyperCLOVA X SEED"),
    ]


def granite(hf_config: object) -> DecoderSpec:
    """Return the facts of a Granite config."""
    facts = ModelFacts(hf_config)
    return _alike(facts, facts.mlp(bias=facts.flag("mlp_bias")), WeightNames())


def granite_moe(hf_config: object) -> DecoderSpec:
    """Return the facts of a Granite config with experts, and an optional shared MLP."""
    facts = ModelFacts(hf_config)
    width = facts.count("shared_intermediate_size", 0, least=0)
    shared = MlpSpec(width=width, activation=facts.activation()) if width else None
    return _alike(facts, _experts(facts, shared), EXPERTS)


def granite_hybrid(hf_config: object) -> DecoderSpec:
    """Return the facts of a Granite 4 config: layers of Mamba 2 or attention, with experts
    and a shared MLP, or only an MLP.
    """
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    bias = facts.flag("attention_bias")
    shared = MlpSpec(
        width=facts.count("shared_intermediate_size", 1024), activation=facts.activation()
    )
    names = replace(
        EXPERTS, recurrent="mamba", gate_up=EXPERTS.shared_gate_up, down=EXPERTS.shared_down
    )
    mlp = _experts(facts, shared) if facts.count("num_local_experts", 8, least=0) else shared
    rope = (
        facts.rope(facts.heads()["head_size"])
        if facts.get("position_embedding_type") == "rope"
        else None
    )
    scale = facts.number("attention_multiplier", 1.0)
    mixers: dict[str, dict[str, Any]] = {
        "linear_attention": {"recurrent": mamba2(facts, norm=norm)},
        "full_attention": {
            "attention": facts.attention(rope=rope, scale=scale, qkv_bias=bias, out_bias=bias)
        },
    }
    kinds = layer_kinds(facts, ["linear_attention"] * facts.num_layers(), set(mixers))
    scale = facts.number("residual_multiplier", 1.0)
    layers = [
        LayerSpec(**mixers[kind], mlp=mlp, attention_in=norm, mlp_in=norm, residual_scale=scale)
        for kind in kinds
    ]
    return _decoder(facts, tuple(layers), names)


def _experts(facts: ModelFacts, shared: MlpSpec | None) -> MoeSpec:
    return facts.moe("intermediate_size", defaults=(8, 2), shared=shared)


def _alike(facts: ModelFacts, mlp: MlpSpec | MoeSpec, names: WeightNames) -> DecoderSpec:
    norm = facts.norm()
    bias = facts.flag("attention_bias")
    scale = facts.number("attention_multiplier", 1.0)
    layer = pre_norm_layer(
        norm,
        attention=facts.attention(scale=scale, qkv_bias=bias, out_bias=bias),
        mlp=mlp,
        residual_scale=facts.number("residual_multiplier", 1.0),
    )
    return _decoder(facts, (layer,) * facts.num_layers(), names)


def _decoder(facts: ModelFacts, layers: tuple[LayerSpec, ...], names: WeightNames) -> DecoderSpec:
    return DecoderSpec(
        **facts.decoder(),
        layers=layers,
        norm=facts.norm(),
        embed_scale=facts.number("embedding_multiplier", 1.0),
        logit_scale=1 / facts.number("logits_scaling", 1.0),
        names=names,
    )


def hyperclovax(hf_config: object) -> DecoderSpec:
    """Return the facts of a HyperCLOVA X config: norms after each sublayer, too; logits
    multiplied.
    """
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    bias = facts.flag("attention_bias")
    after = norm if facts.flag("use_post_norm", True) else None
    scale = facts.number("attention_multiplier", facts.heads()["head_size"] ** -0.5)
    layer = pre_norm_layer(
        norm,
        attention=facts.attention(scale=scale, qkv_bias=bias, out_bias=bias),
        mlp=facts.mlp(bias=facts.flag("mlp_bias")),
        attention_out=after,
        mlp_out=after,
        residual_scale=facts.number("residual_multiplier", 1.0),
    )
    return DecoderSpec(
        **facts.decoder(layer),
        norm=norm,
        embed_scale=facts.number("embedding_multiplier", 1.0),
        logit_scale=facts.number("logits_scaling", 1.0),
        names=WeightNames(attention_out="post_norm1", mlp_out="post_norm2"),
    )
