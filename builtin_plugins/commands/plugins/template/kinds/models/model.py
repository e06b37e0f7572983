"""An architecture: maps a checkpoint's config.json to a decoder spec."""

from __future__ import annotations

from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.names import WeightNames

NAMES = WeightNames()
"""Checkpoint name of each tensor; override the ones that differ."""
EXAMPLE_CONFIG = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
"""Tiny config.json with which the conformance suite builds and runs the model."""
ORACLE = "LlamaForCausalLM"
"""Reference: a class of transformers, or a function (config, weights, token ids) -> logits."""


def spec(hf_config: object) -> DecoderSpec:
    """Return the decoder spec. Raises `ModelError` naming a missing or unsupported field."""
    facts = ModelFacts(hf_config)
    norm = NormSpec(eps=facts.get("rms_norm_eps", 1e-6))
    layer = LayerSpec(attention=facts.attention(), mlp=facts.mlp(), attention_in=norm, mlp_in=norm)
    layers = (layer,) * facts.count("num_hidden_layers")
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)
