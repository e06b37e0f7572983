"""GLM with images: positions with three axes rotate neighbouring elements, in a part of a head."""

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

GLM: Final = "<|begin_of_image|><|image|><|end_of_image|>"
TOKENS: Final = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|begin_of_image|>", "<|end_of_image|>", "<|image|>"),
    *("<|begin_of_video|>", "<|end_of_video|>", "<|video|>"),
)
VISION: Final = {
    "depth": 3,
    "hidden_size": 32,
    "num_heads": 4,
    "intermediate_size": 48,
    "out_hidden_size": 64,
    "image_size": 24,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
"""Images are larger than the grid of positions, which are interpolated."""
EXPERTS: Final = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "attention_bias": True,
}
PIXELS: Final = {"shortest_edge": 256, "longest_edge": 4096}


def _glm(
    folder: Path, classes: tuple[Any, Any], processor: tuple[Any, str], text: Mapping[str, Any]
) -> None:
    own = tokenizer(list(TOKENS))
    ids = own.convert_tokens_to_ids
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    config = classes[0](
        vision_config=dict(VISION),
        text_config={
            **TEXT,
            "rope_parameters": {**rope, "partial_rotary_factor": 0.5},
            **text,
        },
        image_token_id=ids("<|image|>"),
        video_token_id=ids("<|video|>"),
        image_start_token_id=ids("<|begin_of_image|>"),
        image_end_token_id=ids("<|end_of_image|>"),
        video_start_token_id=ids("<|begin_of_video|>"),
        video_end_token_id=ids("<|end_of_video|>"),
        tie_word_embeddings=False,
    )
    save(classes[1](config), folder)
    image_processor = processor[0](
        patch_size=4, merge_size=2, temporal_patch_size=2, size=dict(PIXELS)
    )
    save_parts(folder, image_processor, own, GLM, processor_class=processor[1])


def glm4v(folder: Path) -> None:
    """GLM-4.1V: norms after each sublayer."""
    classes = transformers.Glm4vConfig, transformers.Glm4vForConditionalGeneration
    _glm(folder, classes, (transformers.Glm4vImageProcessorPil, "Glm4vProcessor"), {})


def glm4v_moe(folder: Path) -> None:
    """GLM-4.5V: experts."""
    classes = transformers.Glm4vMoeConfig, transformers.Glm4vMoeForConditionalGeneration
    _glm(folder, classes, (transformers.Glm4vImageProcessorPil, "Glm4vProcessor"), EXPERTS)


def glm46v(folder: Path) -> None:
    """GLM-4.6V."""
    classes = transformers.Glm46VConfig, transformers.Glm46VForConditionalGeneration
    text = {"model_type": "glm4v_text"}
    _glm(folder, classes, (transformers.Glm46VImageProcessorPil, "Glm46VProcessor"), text)


def glm_ocr(folder: Path) -> None:
    """GLM-OCR: no biases of attention, a tower with norms of queries and keys."""
    classes = transformers.GlmOcrConfig, transformers.GlmOcrForConditionalGeneration
    _glm(folder, classes, (transformers.Glm46VImageProcessorPil, "Glm46VProcessor"), {})


MODELS: Final = {
    "glm46v": VisionModel(glm46v, GLM),
    "glm4v": VisionModel(glm4v, GLM),
    "glm4v_moe": VisionModel(glm4v_moe, GLM),
    "glm_ocr": VisionModel(glm_ocr, GLM),
}
