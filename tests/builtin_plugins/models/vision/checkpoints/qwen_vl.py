"""Qwen-VL: positions with three axes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import transformers

from tests.builtin_plugins.models.vision.checkpoints.common import (
    TEXT,
    VisionModel,
    save,
    save_parts,
    tokenizer,
)

QWEN: Final = "<|vision_start|><|image_pad|><|vision_end|>"
QWEN_TOKENS: Final = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)


def _qwen(
    folder: Path, classes: tuple[Any, Any], vision: Mapping[str, Any], text: Mapping[str, Any]
) -> None:
    own = tokenizer(list(QWEN_TOKENS))
    ids = own.convert_tokens_to_ids
    config = classes[0](
        vision_config=dict(vision),
        text_config={**TEXT, **text},
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    save(classes[1](config), folder)
    image_processor = transformers.Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=256, max_pixels=4096
    )
    save_parts(folder, image_processor, own, QWEN)


def _rope(**more: Any) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    return {"rope_parameters": {**rope, **more}}


def qwen2_vl(folder: Path) -> None:
    """Qwen2-VL: positions with three axes."""
    vision = {
        "depth": 2,
        "embed_dim": 32,
        "num_heads": 4,
        "hidden_size": 64,
        "mlp_ratio": 2,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    classes = transformers.Qwen2VLConfig, transformers.Qwen2VLForConditionalGeneration
    _qwen(folder, classes, vision, _rope())


def qwen2_5_vl(folder: Path) -> None:
    """Qwen2.5-VL: windows in the tower."""
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "num_heads": 4,
        "intermediate_size": 48,
        "out_hidden_size": 64,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    }
    classes = transformers.Qwen2_5_VLConfig, transformers.Qwen2_5_VLForConditionalGeneration
    _qwen(folder, classes, vision, _rope())


def qwen3_vl(folder: Path) -> None:
    """Qwen3-VL: interleaved sections, and deepstack."""
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "num_heads": 4,
        "intermediate_size": 48,
        "out_hidden_size": 64,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    }
    classes = transformers.Qwen3VLConfig, transformers.Qwen3VLForConditionalGeneration
    _qwen(folder, classes, vision, _rope(mrope_interleaved=True))


MODELS: Final = {
    "qwen2_5_vl": VisionModel(qwen2_5_vl, QWEN),
    "qwen2_vl": VisionModel(qwen2_vl, QWEN),
    "qwen3_vl": VisionModel(qwen3_vl, QWEN, two_ranks=True),
}
