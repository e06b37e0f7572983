"""Gemma 1: Llama's shape with norms around one, scaled embeddings and the tanh gate."""

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("GemmaForCausalLM", "builtin_plugins.models.gemma:spec", "Gemma 1 and CodeGemma")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Gemma config."""
    facts = ModelFacts(hf_config)
    facts.refuse("use_bidirectional_attention")
    norm = facts.norm(offset=1.0)
    bias = facts.flag("attention_bias")
    activation = facts.activation(default="gelu_pytorch_tanh")
    heads = facts.heads(256)
    layer = LayerSpec(
        attention=facts.attention(**heads, qkv_bias=bias, out_bias=bias),
        # The first releases say gelu and mean its tanh form.
        mlp=facts.mlp(activation="gelu_tanh" if activation == "gelu" else activation),
        attention_in=norm,
        mlp_in=norm,
    )
    scale = facts.count("hidden_size") ** 0.5
    layers = (layer,) * facts.num_layers()
    return DecoderSpec(**facts.decoder(tied=True), layers=layers, norm=norm, embed_scale=scale)
