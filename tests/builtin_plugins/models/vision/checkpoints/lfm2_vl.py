"""LFM2-VL: short convolutions in the text part."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import transformers

from builtin_plugins.input_processors.transformers.lfm2_vl import Lfm2VlImageProcessorPil
from tests.builtin_plugins.models.vision.checkpoints.common import (
    TEXT,
    VisionModel,
    save,
    save_parts,
    tokenizer,
)
from tests.builtin_plugins.models.vision.checkpoints.qwen_vl import SMALL_STATES

TOKENS: Final = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),
    *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 5) for column in range(1, 5)),
]


def lfm2_vl(folder: Path) -> None:
    """LFM2-VL: SigLIP 2 with images of any shape, tiles of large ones, and short convolutions."""
    own = tokenizer(TOKENS)
    config = transformers.Lfm2VlConfig(
        vision_config={
            "model_type": "siglip2_vision_model",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_patches": 16,
            "patch_size": 4,
            "vision_use_head": False,
        },
        text_config={
            **TEXT,
            "model_type": "lfm2",
            "layer_types": ["conv", "full_attention", "conv"],
            "block_auto_adjust_ff_dim": False,
        },
        image_token_id=own.convert_tokens_to_ids("<image>"),
        projector_hidden_size=64,
        downsample_factor=2,
        tie_word_embeddings=True,
    )
    save(transformers.Lfm2VlForConditionalGeneration(config), folder)
    image_processor = Lfm2VlImageProcessorPil(
        encoder_patch_size=4, tile_size=16, min_image_tokens=2, max_image_tokens=8, max_tiles=4
    )
    save_parts(folder, image_processor, own, "<image>")


MODELS: Final = {"lfm2_vl": VisionModel(lfm2_vl, "<image>", settings=SMALL_STATES)}
