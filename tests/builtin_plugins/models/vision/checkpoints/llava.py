"""LLaVA and its kin: CLIP and Llama."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import transformers

from tests.builtin_plugins.models.vision.checkpoints.common import (
    IMAGE,
    TEMPLATE,
    TEXT,
    VisionModel,
    save,
    save_parts,
    tokenizer,
)

CLIP: Final = {
    "model_type": "clip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 7,
    "projection_dim": 32,
}
TILES: Final = [[21, 42], [42, 21], [42, 42]]
"""Heights and widths that images are fitted to, and cut into tiles of."""
TILED: Final = {"size": {"shortest_edge": 21}, "crop_size": {"height": 21, "width": 21}}


def _llava(folder: Path, classes: tuple[Any, Any], **fields: Any) -> None:
    own = tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"])
    config = classes[0](
        vision_config=dict(CLIP),
        text_config={**TEXT, "model_type": "llama"},
        image_token_index=own.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
        **fields,
    )
    save(classes[1](config), folder)
    processor = transformers.LlavaProcessor(
        image_processor=transformers.CLIPImageProcessorPil(
            size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
        ),
        tokenizer=own,
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE.replace(IMAGE, "<image>"),
    )
    processor.save_pretrained(folder)


def llava(folder: Path) -> None:
    """LLaVA 1.5: CLIP and Llama."""
    classes = transformers.LlavaConfig, transformers.LlavaForConditionalGeneration
    chosen = {"vision_feature_layer": -2, "vision_feature_select_strategy": "default"}
    _llava(folder, classes, **chosen)


def vip_llava(folder: Path) -> None:
    """VIP-LLaVA, by the generic entry: several layers of CLIP."""
    classes = transformers.VipLlavaConfig, transformers.VipLlavaForConditionalGeneration
    _llava(folder, classes, vision_feature_layers=[-2, -1, 1])


def _tiled(classes: tuple[Any, Any], own: Any, vision: Mapping[str, Any], **fields: Any) -> Any:
    """Return a model that cuts images into tiles."""
    config = classes[0](
        vision_config=dict(vision),
        text_config={**TEXT, **fields.pop("text")},
        image_token_index=own.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=TILES,
        **fields,
    )
    return classes[1](config)


def _save_llava_next(model: Any, own: Any, folder: Path) -> None:
    save(model, folder)
    processor = transformers.LlavaNextProcessor(
        image_processor=transformers.LlavaNextImageProcessorPil(
            **TILED, image_grid_pinpoints=TILES
        ),
        tokenizer=own,
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE.replace(IMAGE, "<image>"),
    )
    processor.save_pretrained(folder)


def llava_next(folder: Path) -> None:
    """LLaVA-NeXT: tiles without their padding, a newline after each row."""
    own = tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"])
    classes = transformers.LlavaNextConfig, transformers.LlavaNextForConditionalGeneration
    vision = {**CLIP, "image_size": 21}
    model = _tiled(classes, own, vision, text={"model_type": "mistral"})
    _save_llava_next(model, own, folder)


def granite_vision(folder: Path) -> None:
    """Granite Vision: LLaVA-NeXT with several layers of the tower, and scaled images."""
    own = tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"])
    classes = transformers.LlavaNextConfig, transformers.LlavaNextForConditionalGeneration
    vision = {**CLIP, "image_size": 21}
    text = {"model_type": "granite", "embedding_multiplier": 3.0, "logits_scaling": 2.0}
    model = _tiled(classes, own, vision, text=text, vision_feature_layer=[-3, -2, -1])
    _save_llava_next(model, own, folder)


def llava_next_video(folder: Path) -> None:
    """LLaVA-NeXT-Video, which reads images as LLaVA-NeXT does."""
    own = tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>"])
    classes = transformers.LlavaNextVideoConfig, transformers.LlavaNextVideoForConditionalGeneration
    model = _tiled(
        classes,
        own,
        {**CLIP, "image_size": 21},
        text={"model_type": "llama"},
        video_token_index=own.convert_tokens_to_ids("<video>"),
    )
    save(model, folder)
    image_processor = transformers.LlavaNextImageProcessorPil(**TILED, image_grid_pinpoints=TILES)
    save_parts(
        folder,
        image_processor,
        own,
        "<image>",
        processor_class="LlavaNextVideoProcessor",
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def llava_onevision(folder: Path) -> None:
    """LLaVA-OneVision: SigLIP; the features of many tiles are interpolated to fewer."""
    own = tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>"])
    classes = transformers.LlavaOnevisionConfig, transformers.LlavaOnevisionForConditionalGeneration
    model = _tiled(
        classes,
        own,
        {**CLIP, "model_type": "siglip_vision_model", "image_size": 21, "vision_use_head": False},
        text={"model_type": "qwen2"},
        video_token_index=own.convert_tokens_to_ids("<video>"),
        vision_aspect_ratio="anyres_max_2",
    )
    save(model, folder)
    image_processor = transformers.LlavaOnevisionImageProcessorPil(
        size={"height": 21, "width": 21}, image_grid_pinpoints=TILES
    )
    save_parts(
        folder,
        image_processor,
        own,
        "<image>",
        processor_class="LlavaOnevisionProcessor",
        num_image_tokens=9,
        vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_2",
    )


def video_llava(folder: Path) -> None:
    """Video-LLaVA: a second tower, for videos."""
    own = tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>"])
    config = transformers.VideoLlavaConfig(
        vision_config=dict(CLIP),
        text_config={**TEXT, "model_type": "llama"},
        image_token_index=own.convert_tokens_to_ids("<image>"),
        video_token_index=own.convert_tokens_to_ids("<video>"),
    )
    save(transformers.VideoLlavaForConditionalGeneration(config), folder)
    image_processor = transformers.VideoLlavaImageProcessor(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
    )
    save_parts(
        folder,
        image_processor,
        own,
        "<image>",
        processor_class="VideoLlavaProcessor",
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


MODELS: Final = {
    "granite_vision": VisionModel(granite_vision, "<image>"),
    "llava": VisionModel(llava, "<image>", two_ranks=True),
    "llava_next": VisionModel(llava_next, "<image>"),
    "llava_next_video": VisionModel(llava_next_video, "<image>"),
    "llava_onevision": VisionModel(llava_onevision, "<image>"),
    "video_llava": VisionModel(video_llava, "<image>"),
    "vip_llava": VisionModel(vip_llava, "<image>"),
}
