"""Molmo 2: tokens of all images see each other; features are added to embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import transformers

from builtin_plugins.input_processors.transformers.molmo2 import Molmo2ImageProcessorPil
from tests.builtin_plugins.models.vision.checkpoints.common import (
    TEXT,
    VisionModel,
    save,
    save_parts,
    tokenizer,
)

MARKS: Final = ("<im_start>", "<im_end>", "<im_patch>", "<im_col>", "<low_res_im_start>")
VIDEO_MARKS: Final = ("<im_low>", "<frame_start>", "<frame_end>")


def molmo2(folder: Path) -> None:
    """Molmo 2: overlapping crops, tokens beyond the head's vocabulary, two bases of RoPE."""
    own = tokenizer(
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *MARKS, "<|image|>", *VIDEO_MARKS],
        extra_special_tokens={"image_token": "<|image|>"},
    )
    start, end, patch, _, low = own.convert_tokens_to_ids(list(MARKS))
    config = transformers.Molmo2Config(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 8,
            "image_size": [24, 24],
            "patch_size": 4,
        },
        adapter_config={
            "vision_feature_layer": [-1, 0],
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 8,
            "intermediate_size": 96,
            "text_hidden_size": 64,
        },
        text_config={
            **TEXT,
            "vocab_size": start,
            "additional_vocab_size": 16,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
            "rope_scaling_layers": [0, 2],
        },
        image_start_token_id=start,
        low_res_image_start_token_id=low,
        image_end_token_id=end,
        image_patch_id=patch,
    )
    save(transformers.Molmo2ForConditionalGeneration(config), folder)
    image_processor = Molmo2ImageProcessorPil(
        size={"height": 24, "width": 24}, patch_size=4, overlap_margins=[1, 1], max_crops=2
    )
    save_parts(folder, image_processor, own, "<|image|>", processor_class="Molmo2Processor")


LONG: Final[dict[str, Any]] = {"max_num_batched_tokens": 192}
MODELS: Final = {
    "molmo2": VisionModel(
        molmo2, "<|image|>", settings=LONG, shares_prefixes=False, blocks=(16, 18, 20)
    )
}
