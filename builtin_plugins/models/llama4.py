"""Llama 4, text: attention in chunks, some layers without positions, experts that read scaled
tokens.
"""

from typing import Any

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec, Temperature
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import MlpSpec, MoeSpec, pre_norm_layer
from core.model_spec.names import WeightNames

NAMES = WeightNames(
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
    router="feed_forward.router",
    expert="",
    experts_gate_up="feed_forward.experts.gate_up_proj",
    experts_down="feed_forward.experts.down_proj",
    experts_layout="columns",
    shared_gate="feed_forward.shared_expert.gate_proj",
    shared_up="feed_forward.shared_expert.up_proj",
    shared_down="feed_forward.shared_expert.down_proj",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("Llama4ForCausalLM", "builtin_plugins.models.llama4:spec", "Llama 4, text only")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Llama 4 text config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    heads = facts.heads(128)
    activation = facts.activation()
    rope = facts.rope(heads["head_size"], theta=5e5, interleaved=True)
    width = facts.count("intermediate_size")
    experts = MoeSpec(
        experts=facts.count("num_local_experts", 16),
        top_k=facts.count("num_experts_per_tok", 1),
        width=width,
        activation=activation,
        score="sigmoid",
        renormalize=False,
        router_weight_on_input=True,
        shared=MlpSpec(width=width, activation=activation),
    )
    dense = MlpSpec(width=facts.count("intermediate_size_mlp", 16384), activation=activation)
    bias = facts.flag("attention_bias")
    chunk = facts.count("attention_chunk_size", 8192)
    with_rope: dict[str, Any] = {"rope": rope, "qk_norm_after_rope": True}
    with_rope["qk_norm"] = (
        NormSpec(eps=norm.eps, weight=False) if facts.flag("use_qk_norm", True) else None
    )
    without_rope: dict[str, Any] = {"rope": None, "temperature": None}
    if facts.flag("attn_temperature_tuning", True):
        without_rope["temperature"] = Temperature(
            facts.number("attn_scale", 0.1), facts.count("floor_scale", 8192), shift=1
        )
    common = {**heads, "qkv_bias": bias, "out_bias": bias}
    step = facts.count("interleave_moe_layer_step", 1)
    chosen = facts.indices("moe_layers") or range(step - 1, facts.num_layers(), step)
    ropes = facts.switches("no_rope_layers", off_every=facts.count("no_rope_layer_interval", 4))
    kinds = facts.layer_kinds("chunked_attention", "full_attention")
    chunked = ropes if kinds is None else [kind == "chunked_attention" for kind in kinds]
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=facts.attention(
                **common,
                **(with_rope if uses_rope else without_rope),
                chunk=chunk if chunked[i] else None,
            ),
            mlp=experts if i in chosen else dense,
        )
        for i, uses_rope in enumerate(ropes)
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)
