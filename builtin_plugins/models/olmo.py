"""OLMo 1 to 3, OLMoE and FlexOlmo: norms after each sublayer, or without weights."""

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MoeSpec, pre_norm_layer
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.olmo"
NAMES = WeightNames(attention_out="post_attention_layernorm", mlp_out="post_feedforward_layernorm")


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("OlmoForCausalLM", f"{HERE}:olmo", "OLMo 1"),
        Entry("Olmo3ForCausalLM", f"{HERE}:olmo3", "OLMo 3"),
        Entry("Olmo2ForCausalLM", f"{HERE}:olmo2", "OLMo 2"),
        Entry("OlmoeForCausalLM", f"{HERE}:olmoe", "OLMoE"),
        Entry("FlexOlmoForCausalLM", f"{HERE}:flex_olmo", "FlexOlmo"),
    ]


def olmo(hf_config: object) -> DecoderSpec:
    """Return the facts of an OLMo config."""
    facts = ModelFacts(hf_config)
    norm = NormSpec("layer", eps=1e-5, weight=False)
    bias = facts.flag("attention_bias")
    attention = facts.attention(
        clip_qkv=facts.number_or_none("clip_qkv"), qkv_bias=bias, out_bias=bias
    )
    layer = pre_norm_layer(norm, attention=attention, mlp=facts.mlp())
    return DecoderSpec(**facts.decoder(layer), norm=norm)


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
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)


def olmo2(hf_config: object) -> DecoderSpec:
    """Return the facts of an OLMo 2 config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    bias = facts.flag("attention_bias")
    attention = facts.attention(qkv_bias=bias, out_bias=bias, qk_norm=norm, qk_norm_over="all")
    layer = LayerSpec(attention=attention, mlp=facts.mlp(), attention_out=norm, mlp_out=norm)
    return DecoderSpec(**facts.decoder(layer), norm=norm, names=NAMES)


def _experts(facts: ModelFacts) -> MoeSpec:
    return facts.moe("intermediate_size", renormalize=facts.flag("norm_topk_prob"))


def olmoe(hf_config: object) -> DecoderSpec:
    """Return the facts of an OLMoE config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    bias = facts.flag("attention_bias")
    clip = facts.number_or_none("clip_qkv")
    attention = facts.attention(
        qk_norm=norm, qk_norm_over="all", clip_qkv=clip, qkv_bias=bias, out_bias=bias
    )
    layer = pre_norm_layer(norm, attention=attention, mlp=_experts(facts))
    return DecoderSpec(**facts.decoder(layer), norm=norm)


def flex_olmo(hf_config: object) -> DecoderSpec:
    """Return the facts of a FlexOlmo config: norms after each sublayer."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    bias = facts.flag("attention_bias")
    rope = facts.rope(facts.heads()["head_size"], theta=5e5)
    attention = facts.attention(
        rope=rope, qk_norm=norm, qk_norm_over="all", qkv_bias=bias, out_bias=bias
    )
    layer = LayerSpec(attention=attention, mlp=_experts(facts), attention_out=norm, mlp_out=norm)
    return DecoderSpec(**facts.decoder(layer), norm=norm, names=NAMES)
