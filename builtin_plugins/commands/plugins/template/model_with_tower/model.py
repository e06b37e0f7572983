"""An architecture that reads images: maps a checkpoint's config.json to a decoder and a tower."""

from __future__ import annotations

import torch
from engine_acme.tower import AcmeTowerSpec

from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.names import WeightNames
from core.model_spec.tower import TowerFacts

NAMES = WeightNames()
"""Checkpoint name of each tensor of the decoder; override the ones that differ."""
EXAMPLE_CONFIG = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "image_token_id": 257,
}
"""Tiny config.json with which the conformance suite builds and runs the model."""
ORACLE = "LlamaForCausalLM"
"""Reference of the decoder: a class of transformers, or a function (config, weights, token ids) ->
logits.
"""
EXAMPLE_ITEM = ("image", 4, {"colours": torch.rand(4, 3)})
"""An image for the tower: its modality, number of placeholder tokens, and tensors."""


def spec(hf_config: object) -> DecoderSpec:
    """Return the decoder spec. Raises `ModelError` naming a missing or unsupported field."""
    facts = ModelFacts(hf_config)
    norm = NormSpec(eps=facts.get("rms_norm_eps", 1e-6))
    layer = LayerSpec(attention=facts.attention(), mlp=facts.mlp(), attention_in=norm, mlp_in=norm)
    layers = (layer,) * facts.count("num_hidden_layers")
    placeholders = {"image": facts.count("image_token_id")}
    tower = AcmeTowerSpec(TowerFacts(placeholders), facts.count("hidden_size"))
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, tower=tower, names=NAMES)
