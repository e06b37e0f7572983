"""Hybrids of state spaces and attention: Bamba, Falcon H1, Jamba, and what others share."""

from dataclasses import replace
from typing import Any

from core.api import Entry, ModelError, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.hybrid_facts import mamba, mamba2
from core.model_spec.layer import LayerSpec, pre_norm_layer
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.hybrids"
HYBRID_NAMES = WeightNames(
    recurrent="mamba",
    mlp_in="pre_ff_layernorm",
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
    final_norm="model.final_layernorm",
)
"""Tensor names of Jamba-style checkpoints."""
JAMBA = replace(
    HYBRID_NAMES,
    router="feed_forward.router",
    expert="feed_forward.experts.{}",
    experts_gate_up="feed_forward.experts.gate_up_proj",
    experts_down="feed_forward.experts.down_proj",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("BambaForCausalLM", f"{HERE}:bamba", "Bamba"),
        Entry("FalconH1ForCausalLM", f"{HERE}:falcon_h1", "Falcon H1"),
        Entry("JambaForCausalLM", f"{HERE}:jamba", "Jamba"),
    ]


def bamba(hf_config: object) -> DecoderSpec:
    """Return the facts of a Bamba config: RoPE on half of each attention head."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    bias = facts.flag("attention_bias")
    heads = {**facts.heads(), "kv_heads": facts.count("num_key_value_heads", 8)}
    rope = facts.rope(heads["head_size"], share=0.5)
    attention = facts.attention(**heads, rope=rope, qkv_bias=bias, out_bias=bias)
    mixers: dict[bool, dict[str, Any]] = {
        False: {"recurrent": mamba2(facts, norm=norm)},
        True: {"attention": attention},
    }
    attending = facts.indices("attn_layer_indices")
    mlp = facts.mlp(bias=facts.flag("mlp_bias"))
    layers = tuple(
        LayerSpec(**mixers[index in attending], mlp=mlp, attention_in=norm, mlp_in=norm)
        for index in range(facts.num_layers())
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=HYBRID_NAMES)


def falcon_h1(hf_config: object) -> DecoderSpec:
    """Return the facts of a Falcon H1 config. The key factor is applied to the softmax scale."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    bias = facts.flag("attention_bias")
    heads = {**facts.heads(), "kv_heads": facts.count("num_key_value_heads", 8)}
    gate_scale, down_scale = _factors(facts, "mlp_multipliers", 2)
    width = facts.get("mamba_d_ssm", 1024) or facts.count("mamba_expand", 2) * facts.count(
        "hidden_size"
    )
    size = facts.get("mamba_d_head", "auto")
    mixers: dict[str, Any] = {
        "attention": facts.attention(
            **heads,
            scale=heads["head_size"] ** -0.5 * facts.number("key_multiplier", 1.0),
            in_scale=facts.number("attention_in_multiplier", 1.0),
            out_scale=facts.number("attention_out_multiplier", 1.0),
            qkv_bias=bias,
            out_bias=bias,
        ),
        "recurrent": mamba2(
            facts,
            head_size=width // facts.count("mamba_n_heads", 128) if size == "auto" else size,
            norm=norm if facts.flag("mamba_rms_norm") else None,
            norm_first=facts.flag("mamba_norm_before_gate", True),
            out_bias=facts.flag("projectors_bias"),
            in_scale=facts.number("ssm_in_multiplier", 1.0),
            scales=_factors(facts, "ssm_multipliers", 5),
            out_scale=facts.number("ssm_out_multiplier", 1.0),
        ),
    }
    mlp = facts.mlp(bias=facts.flag("mlp_bias"), gate_scale=gate_scale, out_scale=down_scale)
    layer = LayerSpec(**mixers, mlp=mlp, attention_in=norm, mlp_in=norm)
    return DecoderSpec(
        **facts.decoder(layer),
        norm=norm,
        embed_scale=facts.number("embedding_multiplier", 1.0),
        logit_scale=facts.number("lm_head_multiplier", 1.0),
        names=HYBRID_NAMES,
    )


def _factors(facts: ModelFacts, name: str, count: int) -> tuple[float, ...]:
    """Return a list of `count` factors; all 1 if the field is absent."""
    found = (1.0,) * count if facts.get(name) is None else facts.numbers(name)
    if len(found) != count:
        raise ModelError(
            f"{name} in config.json has {len(found)} values; there are {count} factors."
        )
    return found


def jamba(hf_config: object) -> DecoderSpec:
    """Return the facts of a Jamba config; attention has no RoPE."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    experts = facts.moe("intermediate_size", defaults=(16, 2), renormalize=False)
    heads = {**facts.heads(), "kv_heads": facts.count("num_key_value_heads", 8)}
    mixers: dict[bool, dict[str, Any]] = {
        False: {"recurrent": mamba(facts, activation=facts.activation(), norm=norm)},
        True: {"attention": facts.attention(**heads, rope=None)},
    }
    attending = facts.count("attn_layer_period", 8), facts.count("attn_layer_offset", 4, least=0)
    mixing = facts.count("expert_layer_period", 2), facts.count("expert_layer_offset", 1, least=0)
    layers = tuple(
        pre_norm_layer(
            norm,
            **mixers[index % attending[0] == attending[1]],
            mlp=experts if index % mixing[0] == mixing[1] and experts.experts > 1 else facts.mlp(),
        )
        for index in range(facts.num_layers())
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=JAMBA)
