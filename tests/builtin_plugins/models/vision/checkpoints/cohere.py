"""Cohere's Command A Vision."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import transformers

from builtin_plugins.input_processors.transformers.cohere import Cohere2VisionImageProcessorPil
from tests.builtin_plugins.models.vision.checkpoints.common import (
    SIGLIP,
    TEXT,
    VisionModel,
    save,
    save_parts,
    tokenizer,
)

NAMED: Final = {
    "image_token": "<|IMG_PATCH|>",
    "boi_token": "<|START_OF_IMG|>",
    "eoi_token": "<|END_OF_IMG|>",
    "img_line_break_token": "<|IMG_LINE_BREAK|>",
}


def cohere2_vision(folder: Path) -> None:
    """Command A Vision: patches of tiles are shuffled into tokens; Cohere 2 with windows."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *NAMED.values()]
    own = tokenizer(special, extra_special_tokens=NAMED)
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    text = {"model_type": "cohere2", "layer_types": kinds, "sliding_window": 24}
    config = transformers.Cohere2VisionConfig(
        vision_config=dict(SIGLIP),
        text_config={**TEXT, **text, "pad_token_id": 0},
        image_token_id=own.convert_tokens_to_ids("<|IMG_PATCH|>"),
        downsample_factor=2,
        alignment_intermediate_size=64,
        tie_word_embeddings=True,
    )
    save(transformers.Cohere2VisionForConditionalGeneration(config), folder)
    image_processor = Cohere2VisionImageProcessorPil(
        size={"height": 16, "width": 16}, max_patches=4, patch_size=2
    )
    save_parts(folder, image_processor, own, "<|IMG_PATCH|>")


MODELS: Final = {
    "cohere2_vision": VisionModel(cohere2_vision, "<|IMG_PATCH|>", blocks=(20, 22, 24))
}
