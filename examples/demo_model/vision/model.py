"""The tower's sizes, and the language model that reads its soft tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM

from builtin_plugins.model_sources.api import LabelTower, TowerSizes
from examples.demo_model.vision.labels import LABELS
from examples.demo_model.vision.scenes import SIZE

PATCH: Final = 16
NUM_TOKENS: Final = (SIZE // PATCH) ** 2
MEAN: Final = 0.5
STD: Final = 0.5
VISION: Final = {
    "model_type": "siglip_vision_model",
    "hidden_size": 192,
    "intermediate_size": 576,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "image_size": SIZE,
    "patch_size": PATCH,
    "vision_use_head": False,
}
WIDTH: Final = 256
"""Width of the layers between labels and soft tokens."""


def make_tower(hidden_size: int) -> LabelTower:
    """Return a new tower for a language model with embeddings of this size."""
    labels = {name: len(values) for name, values in LABELS.items()}
    return LabelTower(TowerSizes(VISION, labels, NUM_TOKENS, hidden_size, WIDTH))


def load_language_model(folder: Path) -> Any:
    """Return the language model of a folder, frozen, in float32."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.requires_grad_(requires_grad=False)
