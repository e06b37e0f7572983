"""OLMo 1: norms without weights, clamped QKV. OLMo 3: OLMo 2 with sliding windows."""

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.olmo"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("OlmoForCausalLM", f"{HERE}:olmo", "OLMo 1"),
        Entry("Olmo3ForCausalLM", f"{HERE}:olmo3", "OLMo 3"),
    ]


def olmo(hf_config: object) -> DecoderSpec:
    """Return the facts of an OLMo config."""
    facts = ModelFacts(hf_config)
    norm = NormSpec("layer", eps=1e-5, weight=False)
    bias = facts.flag("attention_bias")
    attention = facts.attention(
        clip_qkv=facts.number_or_none("clip_qkv"), qkv_bias=bias, out_bias=bias
    )
    layer = LayerSpec(attention=attention, mlp=facts.mlp(), attention_in=norm, mlp_in=norm)
    return DecoderSpec(**facts.decoder(), layers=(layer,) * facts.num_layers(), norm=norm)


def olmo3(hf_config: object) -> DecoderSpec:
    """Return the facts of an OLMo 3 config: sliding-window layers have unscaled RoPE."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    bias = facts.flag("attention_bias")
    size = facts.heads()["head_size"]
    full = facts.rope(size, layer_type="full_attention", theta=5e5)
    local = facts.rope(size, layer_type="sliding_attention", theta=5e5, scaled=False)
    layers = tuple(
        LayerSpec(
            attention=facts.attention(
                rope=full if window is None else local,
                window=window,
                qkv_bias=bias,
                out_bias=bias,
                qk_norm=norm,
                qk_norm_over="all",
            ),
            mlp=facts.mlp(),
            attention_out=norm,
            mlp_out=norm,
        )
        for window in facts.windows(facts.window(4096), full_every=4)
    )
    names = WeightNames(
        attention_out="post_attention_layernorm", mlp_out="post_feedforward_layernorm"
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=names)
