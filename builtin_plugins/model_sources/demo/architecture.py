"""Reads the config of `demo:vision`: the decoder of the text model, with a tower of its own."""

from __future__ import annotations

from typing import Any

from builtin_plugins.model_sources.demo.tower import DemoTowerSpec, TowerSizes
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.tower import TowerFacts


def spec(hf_config: Any) -> DecoderSpec:
    """Return a Qwen3 decoder with the tower."""
    facts = ModelFacts(hf_config).part("text_config")
    norm = facts.norm()
    layer = LayerSpec(
        attention=facts.attention(**facts.heads(), qk_norm=norm),
        mlp=facts.mlp(),
        attention_in=norm,
        mlp_in=norm,
    )
    sizes = TowerSizes(
        vision=hf_config.vision_config,
        labels=hf_config.label_sizes,
        num_tokens=hf_config.image_seq_length,
        hidden_size=hf_config.text_config["hidden_size"],
        width=hf_config.soft_token_width,
    )
    tower = DemoTowerSpec(TowerFacts({"image": hf_config.image_token_index}), sizes)
    layers = (layer,) * facts.num_layers()
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, tower=tower)
