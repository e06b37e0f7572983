"""Mistral and Ministral: Llama's shape with a sliding window, in every layer or in those named."""

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry(
            "MistralForCausalLM",
            "builtin_plugins.models.mistral:spec",
            "Mistral 7B and its relatives",
        ),
        Entry("MinistralForCausalLM", "builtin_plugins.models.mistral:ministral", "Ministral 8B"),
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Mistral config."""
    facts = ModelFacts(hf_config)
    norm = NormSpec(eps=facts.number("rms_norm_eps", 1e-6))
    attention = facts.attention(window=facts.window(4096))
    layer = LayerSpec(attention=attention, mlp=facts.mlp(), attention_in=norm, mlp_in=norm)
    return DecoderSpec(**facts.decoder(), layers=(layer,) * facts.num_layers(), norm=norm)


def ministral(hf_config: object) -> DecoderSpec:
    """Return the facts of a Ministral config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    mlp = facts.mlp()
    layers = tuple(
        LayerSpec(attention=facts.attention(window=window), mlp=mlp, attention_in=norm, mlp_in=norm)
        for window in facts.windows(facts.window(4096))
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm)
