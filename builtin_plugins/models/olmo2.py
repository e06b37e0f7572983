"""OLMo 2: norms after each sublayer, and one norm over all query and all key heads."""

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.names import WeightNames

NAMES = WeightNames(attention_out="post_attention_layernorm", mlp_out="post_feedforward_layernorm")


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("Olmo2ForCausalLM", "builtin_plugins.models.olmo2:spec", "OLMo 2")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of an OLMo 2 config."""
    facts = ModelFacts(hf_config)
    norm = NormSpec(eps=facts.number("rms_norm_eps", 1e-5))
    bias = facts.flag("attention_bias")
    attention = facts.attention(qkv_bias=bias, out_bias=bias, qk_norm=norm, qk_norm_over="all")
    layer = LayerSpec(attention=attention, mlp=facts.mlp(), attention_out=norm, mlp_out=norm)
    layers = (layer,) * facts.num_layers()
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)
