"""Falcon H1: parallel attention and Mamba 2 in every layer, with factors on the projections."""

from typing import Any

from builtin_plugins.models.state_spaces import HYBRID_NAMES, mamba2
from core.api import Entry, ModelError, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("FalconH1ForCausalLM", "builtin_plugins.models.falcon_h1:spec", "Falcon H1")]


def spec(hf_config: object) -> DecoderSpec:
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
        **facts.decoder(),
        layers=(layer,) * facts.num_layers(),
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
