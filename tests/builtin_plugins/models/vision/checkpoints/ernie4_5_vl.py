"""ERNIE 4.5 VL: experts for the tokens of images."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import transformers

from tests.builtin_plugins.models.vision.checkpoints.common import (
    TEXT,
    VisionModel,
    save,
    save_parts,
    tokenizer,
)

NAMED: Final = {
    "image_token": "<|IMAGE_PLACEHOLDER|>",
    "image_start_token": "<|IMAGE_START|>",
    "image_end_token": "<|IMAGE_END|>",
    "video_token": "<|VIDEO_PLACEHOLDER|>",
    "video_start_token": "<|VIDEO_START|>",
    "video_end_token": "<|VIDEO_END|>",
}
PROMPT: Final = "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>"


def ernie4_5_vl(folder: Path) -> None:
    """ERNIE 4.5 VL: a dense layer, then experts of text and of images, which share some."""
    own = tokenizer(
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *NAMED.values()],
        extra_special_tokens=NAMED,
    )
    ids = {f"{name}_id": own.convert_tokens_to_ids(text) for name, text in NAMED.items()}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]}
    text = {name: value for name, value in TEXT.items() if name != "head_dim"}
    config = transformers.Ernie4_5_VLMoeConfig(
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "num_heads": 4,
            "intermediate_size": 48,
            "patch_size": 4,
            "spatial_merge_size": 2,
        },
        text_config={
            **text,
            "rope_parameters": rope,
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "moe_intermediate_size": [32, 24],
        },
        **ids,
    )
    save(transformers.Ernie4_5_VLMoeForConditionalGeneration(config), folder)
    image_processor = transformers.Ernie4_5_VLMoeImageProcessorPil(
        patch_size=4, merge_size=2, size={"shortest_edge": 256, "longest_edge": 4096}
    )
    save_parts(folder, image_processor, own, PROMPT, processor_class="Ernie4_5_VLMoeProcessor")


MODELS: Final = {"ernie4_5_vl": VisionModel(ernie4_5_vl, PROMPT)}
