"""Phi-3.5-MoE: two experts by sparsemixer, layer norms, long rotary positions with a factor for
each length.
"""

from builtin_plugins.models.mixtral import MIXTRAL_NAMES
from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MoeSpec


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture under transformers' and the model repository's name."""
    names = ("PhimoeForCausalLM", "PhiMoEForCausalLM")
    return [Entry(name, "builtin_plugins.models.phimoe:spec", "Phi-3.5-MoE") for name in names]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Phi-3.5-MoE config."""
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm("rms_norm_eps")
    bias = facts.flag("attention_bias")
    experts = MoeSpec(
        experts=facts.count("num_local_experts", 16),
        top_k=facts.count("num_experts_per_tok", 2),
        width=facts.count("intermediate_size"),
        activation=facts.activation(),
        score="sparsemixer",
        jitter=facts.number("router_jitter_noise", 0.01),
    )
    rope = facts.rope(facts.heads()["head_size"], theta=1e6)
    attention = facts.attention(rope=rope, window=facts.window(), qkv_bias=bias, out_bias=bias)
    layer = LayerSpec(attention=attention, mlp=experts, attention_in=norm, mlp_in=norm)
    layers = (layer,) * facts.num_layers()
    head_bias = facts.flag("lm_head_bias")
    return DecoderSpec(
        **facts.decoder(), layers=layers, norm=norm, head_bias=head_bias, names=MIXTRAL_NAMES
    )
