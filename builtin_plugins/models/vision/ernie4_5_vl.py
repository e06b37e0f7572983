"""ERNIE 4.5 VL: the tokens of images have experts of their own."""

from __future__ import annotations

from typing import Any, Final

import torch

from builtin_plugins.models.vision.image_text import TextPart
from core.api.models import ForwardBatch


def token_types(config: Any, model: Any, batch: ForwardBatch) -> dict[str, torch.Tensor]:
    """Return 1 for the tokens of images in prompts, and for those that enclose an image."""
    del model
    ids = batch.input_ids
    image_ids = (config.image_token_id, config.image_start_token_id, config.image_end_token_id)
    is_image = torch.isin(ids, torch.tensor(image_ids, device=ids.device))
    is_prompt = [
        start + offset < prompt_len  # positions of images differ from those of tokens
        for start, count, prompt_len in zip(
            batch.starts, batch.counts, batch.prompt_lens, strict=True
        )
        for offset in range(count)
    ]
    return {"moe_mm_token_type_ids": is_image & torch.tensor(is_prompt, device=ids.device)}


TEXT: Final = TextPart(inputs=token_types)
