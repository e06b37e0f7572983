"""Qwen-VL: positions with three axes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
import transformers

from tests.builtin_plugins.models.vision.checkpoints.common import (
    TEXT,
    VisionModel,
    edit,
    save,
    save_parts,
    tokenizer,
)

QWEN: Final = "<|vision_start|><|image_pad|><|vision_end|>"
QWEN_TOKENS: Final = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)


def qwen_config(
    config_class: Any, vision: Mapping[str, Any], text: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return a tokenizer and a config with its tokens."""
    own = tokenizer(list(QWEN_TOKENS))
    ids = own.convert_tokens_to_ids
    config = config_class(
        vision_config=dict(vision),
        text_config={**TEXT, **text},
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    return own, config


def image_processor() -> Any:
    """Return the image processor of all of them."""
    return transformers.Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=256, max_pixels=4096
    )


def _qwen(
    folder: Path, classes: tuple[Any, Any], vision: Mapping[str, Any], text: Mapping[str, Any]
) -> None:
    own, config = qwen_config(classes[0], vision, text)
    save(classes[1](config), folder)
    save_parts(folder, image_processor(), own, QWEN)


def rope(**more: Any) -> dict[str, Any]:
    """Return a field of a text config: sections of positions."""
    stated = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    return {"rope_parameters": {**stated, **more}}


QWEN2_VISION: Final = {
    "depth": 2,
    "embed_dim": 32,
    "num_heads": 4,
    "hidden_size": 64,
    "mlp_ratio": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}


def qwen2_vl(folder: Path) -> None:
    """Qwen2-VL: positions with three axes."""
    classes = transformers.Qwen2VLConfig, transformers.Qwen2VLForConditionalGeneration
    _qwen(folder, classes, QWEN2_VISION, rope())


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
    _qwen(folder, classes, vision, rope())


QWEN3_VISION: Final = {
    "depth": 3,
    "hidden_size": 32,
    "num_heads": 4,
    "intermediate_size": 48,
    "out_hidden_size": 64,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 64,
}
DEEPSTACK: Final = {"deepstack_visual_indexes": [0, 1]}
MOE: Final = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 48,
}
HYBRID: Final = {
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
SMALL_STATES: Final = {"mamba_block_size": 16}
"""Recurrent states are cached at distances shorter than the prompts."""


def qwen3_vl(folder: Path) -> None:
    """Qwen3-VL: interleaved sections, and deepstack."""
    classes = transformers.Qwen3VLConfig, transformers.Qwen3VLForConditionalGeneration
    _qwen(folder, classes, {**QWEN3_VISION, **DEEPSTACK}, rope(mrope_interleaved=True))


def qwen3_vl_moe(folder: Path) -> None:
    """Qwen3-VL with experts: their weights are always normalized.

    Those of one layer are stored as in published checkpoints, of another as transformers saves.
    """
    classes = transformers.Qwen3VLMoeConfig, transformers.Qwen3VLMoeForConditionalGeneration
    text = {**MOE, "mlp_only_layers": [1], **rope(mrope_interleaved=True)}
    _qwen(folder, classes, {**QWEN3_VISION, **DEEPSTACK}, text)

    def publish(tensors: dict[str, torch.Tensor]) -> None:
        for name in ("gate_up_proj", "down_proj"):
            name = f"model.language_model.layers.0.mlp.experts.{name}"
            tensors[name] = tensors[name].transpose(1, 2).contiguous()

    edit(folder, publish)


def qwen3_5(folder: Path) -> None:
    """Qwen 3.5: a hybrid decoder, three axes on a part of each head; a layer for drafts, unused."""
    classes = transformers.Qwen3_5Config, transformers.Qwen3_5ForConditionalGeneration
    text = {**HYBRID, **rope(mrope_interleaved=True, partial_rotary_factor=0.5)}
    _qwen(folder, classes, QWEN3_VISION, text)
    edit(folder, lambda tensors: tensors.update({"mtp.norm.weight": torch.ones(64)}))


def qwen3_5_moe(folder: Path) -> None:
    """Qwen 3.5 with experts."""
    classes = transformers.Qwen3_5MoeConfig, transformers.Qwen3_5MoeForConditionalGeneration
    text = {**HYBRID, **MOE, **rope(mrope_interleaved=True, partial_rotary_factor=0.5)}
    _qwen(folder, classes, QWEN3_VISION, text)


MODELS: Final = {
    "qwen2_5_vl": VisionModel(qwen2_5_vl, QWEN),
    "qwen2_vl": VisionModel(qwen2_vl, QWEN),
    "qwen3_5": VisionModel(qwen3_5, QWEN, two_ranks=True, settings=SMALL_STATES),
    "qwen3_5_moe": VisionModel(qwen3_5_moe, QWEN, settings=SMALL_STATES),
    "qwen3_vl": VisionModel(qwen3_vl, QWEN, two_ranks=True),
    "qwen3_vl_moe": VisionModel(qwen3_vl_moe, QWEN),
}
