"""Phi-3 and Phi-4 mini: Llama's shape with fused checkpoint tensors, partial and long rotary
positions.
"""

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.names import WeightNames

NAMES = WeightNames(qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("Phi3ForCausalLM", "builtin_plugins.models.phi3:spec", "Phi-3 and Phi-4 mini")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Phi-3 config."""
    facts = ModelFacts(hf_config)
    norm = NormSpec(eps=facts.number("rms_norm_eps", 1e-5))
    attention = facts.attention(window=facts.window())
    layer = LayerSpec(attention=attention, mlp=facts.mlp(), attention_in=norm, mlp_in=norm)
    layers = (layer,) * facts.num_layers()
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)
