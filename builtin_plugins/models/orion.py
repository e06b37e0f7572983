"""Orion: Llama with LayerNorm."""

from builtin_plugins.models.llama import equal_layers
from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("OrionForCausalLM", "builtin_plugins.models.orion:spec", "Orion")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of an Orion config; `rms_norm_eps` is that of its LayerNorm."""
    facts = ModelFacts(hf_config)
    bias = facts.flag("attention_bias")
    return equal_layers(facts, facts.layer_norm("rms_norm_eps"), qkv_bias=bias, out_bias=bias)
