"""Models of Llama's form and tensor names under names of their own, two with biases."""

from builtin_plugins.models import llama
from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts

HERE = "builtin_plugins.models.llama_names"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("LLaMAForCausalLM", "builtin_plugins.models.llama:spec", "Llama 1, as first named"),
        Entry("AquilaModel", "builtin_plugins.models.llama:spec", "Aquila"),
        Entry("AquilaForCausalLM", "builtin_plugins.models.llama:spec", "Aquila 2"),
        Entry("XverseForCausalLM", "builtin_plugins.models.llama:spec", "XVERSE"),
        Entry("InternLMForCausalLM", f"{HERE}:biased", "InternLM 1"),
        Entry("PanguEmbeddedForCausalLM", f"{HERE}:biased", "openPangu Embedded"),
    ]


def biased(hf_config: object) -> DecoderSpec:
    """Return the facts of an InternLM 1 or openPangu config: `bias` is that of attention."""
    facts = ModelFacts(hf_config)
    bias = facts.flag("bias", facts.flag("attention_bias"))
    attention = {"qkv_bias": bias, "out_bias": bias}
    return llama.equal_layers(facts, facts.norm(), mlp_bias=facts.flag("mlp_bias"), **attention)
