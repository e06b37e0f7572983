"""gpt-oss: sinks in attention, every other layer with a window, experts with biases in four-bit
blocks.
"""

import math
from dataclasses import replace

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import MoeSpec, pre_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.rope import YarnScaling


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [
        Entry("GptOssForCausalLM", "builtin_plugins.models.gpt_oss:spec", "gpt-oss 20B and 120B")
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a gpt-oss config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    bias = facts.flag("attention_bias", True)
    heads = facts.heads(64)
    rope = facts.rope(heads["head_size"], theta=150_000.0)
    if facts.get("rope_parameters") is None and facts.get("rope_scaling") is None:
        rope = replace(
            rope, scaling=YarnScaling(32.0, 4096, 0.1 * math.log(32.0) + 1.0, truncate=False)
        )
    experts = MoeSpec(
        experts=facts.count("num_local_experts"),
        top_k=facts.count("num_experts_per_tok", facts.get("experts_per_token")),
        width=facts.count("intermediate_size"),
        activation="swiglu_clamped",
        clamps=(facts.number("swiglu_alpha", 1.702), facts.number("swiglu_limit", 7.0)),
        router_bias=True,
        bias=True,
    )
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=facts.attention(
                **heads, rope=rope, window=window, sinks=True, qkv_bias=bias, out_bias=bias
            ),
            mlp=experts,
        )
        for window in facts.windows(facts.window(128), full_every=2)
    )
    names = WeightNames(
        router="mlp.router", expert_gate_up="gate_up_proj", experts_layout="interleaved"
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=names)
