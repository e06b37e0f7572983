"""Mistral: Llama's shape with a sliding window in every layer."""

from core.api import DecoderSpec, Entry, LayerSpec, ModelFacts, NormSpec, hookimpl


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("MistralForCausalLM", "builtin_plugins.models.mistral:spec", "Mistral 7B and its relatives")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Mistral config."""
    facts = ModelFacts(hf_config)
    norm = NormSpec(eps=facts.number("rms_norm_eps", 1e-6))
    attention = facts.attention(window=facts.window(4096))
    layer = LayerSpec(attention=attention, mlp=facts.mlp(), attention_in=norm, mlp_in=norm)
    return DecoderSpec(**facts.decoder(), layers=(layer,) * facts.num_layers(), norm=norm)
