"""An architecture: from a checkpoint's config.json to the facts one decoder is built from."""

from __future__ import annotations

from core.api import DecoderSpec, LayerSpec, ModelFacts, NormSpec, WeightNames

NAMES = WeightNames()
"""Where the checkpoint keeps each tensor; name what differs from the usual."""
EXAMPLE_CONFIG = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
"""A tiny config.json, with which the conformance suite builds and runs the model."""
ORACLE = "LlamaForCausalLM"
"""What computes the truth: transformers' class for such a config, or a function (config, weights,
token ids) -> logits.
"""


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts. Raises `ModelError` naming a field that is missing or cannot work."""
    facts = ModelFacts(hf_config)
    norm = NormSpec(eps=facts.get("rms_norm_eps", 1e-6))
    layer = LayerSpec(attention=facts.attention(), mlp=facts.mlp(), attention_in=norm, mlp_in=norm)
    layers = (layer,) * facts.count("num_hidden_layers")
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)
