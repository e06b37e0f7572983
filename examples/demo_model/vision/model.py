"""The demo model with a vision tower: LLaVA of transformers, the language model as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Qwen3Config,
    SiglipVisionConfig,
)

from examples.demo_model.vision.scenes import SIZE

PATCH: Final = 16
TOWER: Final = SiglipVisionConfig(
    hidden_size=192,
    intermediate_size=576,
    num_hidden_layers=4,
    num_attention_heads=6,
    image_size=SIZE,
    patch_size=PATCH,
    vision_use_head=False,
)
NUM_TOKENS: Final = (SIZE // PATCH) ** 2
MEAN: Final = 0.5
STD: Final = 0.5


def make_model(language_model: Path, image_token_id: int) -> LlavaForConditionalGeneration:
    """Return the language model of a folder, frozen, with a new tower and projector; float32."""
    text = json.loads((language_model / "config.json").read_text(encoding="utf-8"))
    config = LlavaConfig(
        vision_config=TOWER,
        text_config=Qwen3Config(**text),
        image_token_index=image_token_id,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_seq_length=NUM_TOKENS,
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config).float()
    trained = AutoModelForCausalLM.from_pretrained(language_model, dtype=torch.float32)
    model.model.language_model.load_state_dict(trained.model.state_dict())
    model.tie_weights()
    model.model.language_model.requires_grad_(requires_grad=False)
    return model


def learnt_parts(model: LlavaForConditionalGeneration) -> nn.ModuleDict:
    """Return what is trained: the tower and the projector."""
    return nn.ModuleDict(
        {
            "vision_tower": model.model.vision_tower,
            "multi_modal_projector": model.model.multi_modal_projector,
        }
    )
