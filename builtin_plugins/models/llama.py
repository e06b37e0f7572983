"""Llama 1 to 3 and the many models of its shape: gated MLP, rotary positions, norms before each part."""

from core.api import DecoderSpec, Entry, LayerSpec, ModelFacts, NormSpec, hookimpl


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("LlamaForCausalLM", "builtin_plugins.models.llama:spec", "Llama 1 to 3 and its relatives")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Llama config."""
    facts = ModelFacts(hf_config)
    norm = NormSpec(eps=facts.number("rms_norm_eps", 1e-6))
    bias = facts.flag("attention_bias")
    layer = LayerSpec(
        attention=facts.attention(qkv_bias=bias, out_bias=bias),
        mlp=facts.mlp(bias=facts.flag("mlp_bias")),
        attention_in=norm,
        mlp_in=norm,
    )
    return DecoderSpec(**facts.decoder(), layers=(layer,) * facts.num_layers(), norm=norm)
