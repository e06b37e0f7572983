"""Llama with another residual stream: Arctic, Ouro and Solar."""

from dataclasses import replace
from typing import Any

from builtin_plugins.models.llama import equal_layers
from core.api import Entry, ModelError, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.llama_streams"
ARCTIC = WeightNames(
    mlp_in="residual_layernorm",
    gate="residual_mlp.w1",
    up="residual_mlp.w3",
    down="residual_mlp.w2",
    moe_norm_in="post_attention_layernorm",
    router="block_sparse_moe.gate",
    expert="block_sparse_moe.experts.{}",
    expert_gate="w1",
    expert_up="w3",
    expert_down="w2",
)
OURO = WeightNames(
    attention_out="input_layernorm_2",
    mlp_out="post_attention_layernorm_2",
    ignored=("*.rotary_emb.inv_freq", "model.early_exit_gate.*"),
)
SOLAR = {
    "bskcn_1": [12, 20, 32, 44],
    "bskcn_2": [20, 32],
    "bskcn_3": [16, 24, 36, 48],
    "bskcn_4": [28, 40],
}
"""Layers of Solar Pro that save a residual stream (1, 2), and that mix it into theirs (3, 4)."""


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("ArcticForCausalLM", f"{HERE}:arctic", "Snowflake Arctic"),
        Entry("OuroForCausalLM", f"{HERE}:ouro", "Ouro"),
        Entry("SolarForCausalLM", f"{HERE}:solar", "Solar Pro"),
    ]


def arctic(hf_config: object) -> DecoderSpec:
    """Return the facts of an Arctic config: experts read the input of attention, a dense MLP its
    output.
    """
    facts = ModelFacts(hf_config)
    if not facts.flag("parallel_attn_mlp_res") or facts.count("moe_layer_frequency", 1) != 1:
        raise ModelError(
            "parallel_attn_mlp_res: got an Arctic without it, or with moe_layer_frequency above 1; "
            "expected experts next to each layer's attention. Serve the published checkpoint."
        )
    spec = equal_layers(
        facts, facts.norm(eps=1e-5), names=ARCTIC, mlp={"width": facts.count("hidden_size")}
    )
    several = facts.count("num_experts_per_tok", 1) > 1
    experts = facts.moe("intermediate_size", defaults=(None, 1), renormalize=several)
    layers = tuple(replace(layer, early_moe=experts) for layer in spec.layers)
    return replace(spec, layers=layers)


def ouro(hf_config: object) -> DecoderSpec:
    """Return the facts of an Ouro config: all layers run several times, each time with a KV cache
    of its own.
    """
    facts = ModelFacts(hf_config)
    if facts.number("early_exit_threshold", 1.0) < 1.0:
        raise ModelError(
            "early_exit_threshold: got less than 1; expected 1, because tokens of one batch may "
            "not leave the loop apart. Set it with --hf-overrides."
        )
    norm = facts.norm()
    spec = equal_layers(facts, norm, names=OURO)
    count = len(spec.layers)
    times = facts.count("total_ut_steps", 4)
    layer = replace(spec.layers[0], attention_out=norm, mlp_out=norm)
    return replace(
        spec,
        layers=(layer,) * (count * times),
        stored_layers=tuple(range(count)) * times,
        loop_length=count,
    )


def solar(hf_config: object) -> DecoderSpec:
    """Return the facts of a Solar Pro config: some layers mix an earlier residual stream into
    theirs.
    """
    facts = ModelFacts(hf_config)
    bias = facts.flag("attention_bias")
    attention: dict[str, Any] = {"qkv_bias": bias, "out_bias": bias, "window": facts.window()}
    spec = equal_layers(facts, facts.norm(), mlp_bias=facts.flag("mlp_bias"), **attention)
    listed = {
        name: facts.indices(name) if facts.get(name) is not None else layers
        for name, layers in SOLAR.items()
    }
    # The first of the two shares is that of training.
    share = float((facts.get("bskcn_tv") or (0.9, 0.8))[1])
    layers = []
    for index, layer in enumerate(spec.layers):
        saved = tuple(which for which in "12" if index in listed[f"bskcn_{which}"])
        mixed = next((w for w, into in ("13", "24") if index in listed[f"bskcn_{into}"]), None)
        blend = None if mixed is None else (mixed, share)
        layers.append(replace(layer, saved_streams=saved, blend=blend))
    return replace(spec, layers=tuple(layers))
