"""MiniCPM-V: images as a whole and in slices, numbered in a prompt; a hybrid decoder."""

from __future__ import annotations

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
from tests.builtin_plugins.models.vision.checkpoints.qwen_vl import HYBRID, SMALL_STATES

IMAGE: Final = "<|image_pad|>"
NAMED: Final = {
    "image_token": IMAGE,
    "video_token": "<|video_pad|>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}


def _minicpm(folder: Path, classes: tuple[Any, Any], rope: dict[str, Any], **named: str) -> None:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *NAMED.values()]
    own = tokenizer(special, extra_special_tokens=NAMED)
    ids = own.convert_tokens_to_ids
    config = classes[0](
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": 32,
            "patch_size": 2,
        },
        text_config={
            **TEXT,
            **HYBRID,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                **rope,
            },
        },
        insert_layer_id=1,
        image_token_id=ids(IMAGE),
        video_token_id=ids("<|video_pad|>"),
        **{name: ids(text) for name, text in named.items()},
    )
    save(classes[1](config), folder)
    image_processor = transformers.MiniCPMV4_6ImageProcessorPil(
        scale_resolution=32, patch_size=2, max_slice_nums=4
    )
    save_parts(folder, image_processor, own, IMAGE)


def minicpmv4_6(folder: Path) -> None:
    """MiniCPM-V 4.6: an inserted merger of windows."""
    classes = transformers.MiniCPMV4_6Config, transformers.MiniCPMV4_6ForConditionalGeneration
    _minicpm(folder, classes, {})


def minicpmv4_7(folder: Path) -> None:
    """MiniCPM-V 4.7: positions of slices on the canvas of their image."""
    classes = transformers.MiniCPMV4_7Config, transformers.MiniCPMV4_7ForConditionalGeneration
    rope = {"mrope_section": [2, 3, 3], "mrope_interleaved": True}
    named = {
        "image_start_id": "<image>",
        "image_end_id": "</image>",
        "slice_start_id": "<slice>",
        "slice_end_id": "</slice>",
        "newline_id": "\u010a",
    }
    _minicpm(folder, classes, rope, **named)


MODELS: Final = {
    "minicpmv4_6": VisionModel(minicpmv4_6, IMAGE, settings=SMALL_STATES),
    "minicpmv4_7": VisionModel(minicpmv4_7, IMAGE, settings=SMALL_STATES),
}
