"""Phi-4-multimodal: its tower is part of its embeddings, next to that of audio, which is unused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import torch

UNUSED: Final = ("embed_tokens", "norm", "embed_tokens_extend.audio_embed")
"""Modules next to its tower."""


def placeholder(config: Any) -> int:
    """Return the placeholder token."""
    return int(config.vision_config.image_token_id)


def features(base: Any) -> Callable[..., Any]:
    """Return the function that encodes an image, as a prompt of placeholders only."""
    embed = base.embed_tokens_extend.image_embed

    def encode(
        image_pixel_values: torch.Tensor,
        image_sizes: torch.Tensor,
        image_attention_mask: torch.Tensor,
        num_img_tokens: torch.Tensor,
        **_: Any,
    ) -> SimpleNamespace:
        tokens = torch.full((1, int(num_img_tokens)), placeholder(base.config))
        prompt = image_pixel_values.new_zeros(*tokens.shape, embed.img_projection_down.out_features)
        found = embed(
            tokens.to(prompt.device), prompt, image_pixel_values, image_sizes, image_attention_mask
        )
        return SimpleNamespace(pooler_output=found)

    return encode
