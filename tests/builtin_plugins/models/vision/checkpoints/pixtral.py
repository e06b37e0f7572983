"""Models with the tower of Pixtral: images of any size, with a row of patches for each line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import transformers

from builtin_plugins.input_processors.transformers.pixtral import PixtralProcessor
from core.testing.published.references import MISTRAL_LARGE4
from tests.builtin_plugins.models.vision.checkpoints.common import (
    IMAGE,
    TEMPLATE,
    TEXT,
    VisionModel,
    save,
    tokenizer,
)

PIXTRAL: Final = {
    "model_type": "pixtral",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 64,
    "patch_size": 4,
}
TOKENS: Final = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "[IMG]", "[IMG_BREAK]", "[IMG_END]"]
SIZES: Final = ("kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "index_head_dim")
WHOLE_PANELS: Final = dict.fromkeys(SIZES, 64)
"""Sizes of latents that fill whole panels of 64 rows when packed."""
NAMED: Final = {
    "image_token": "[IMG]",
    "image_break_token": "[IMG_BREAK]",
    "image_end_token": "[IMG_END]",
}


def _image_processor(patch: int) -> Any:
    return transformers.PixtralImageProcessorPil(
        size={"longest_edge": 24}, patch_size={"height": patch, "width": patch}
    )


def _save(model: Any, processor: Any, folder: Path) -> None:
    save(model, folder)
    processor.chat_template = TEMPLATE.replace(IMAGE, "[IMG]")
    processor.save_pretrained(folder)


def pixtral(folder: Path) -> None:
    """Pixtral: lines end in a token of their own; Mistral with a sliding window."""
    own = tokenizer(TOKENS)
    config = transformers.LlavaConfig(
        vision_config=dict(PIXTRAL),
        text_config={**TEXT, "model_type": "mistral", "sliding_window": 24},
        image_token_index=own.convert_tokens_to_ids("[IMG]"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=False,
    )
    processor = PixtralProcessor(image_processor=_image_processor(4), tokenizer=own, patch_size=4)
    _save(transformers.LlavaForConditionalGeneration(config), processor, folder)


def mistral3(folder: Path) -> None:
    """Mistral 3: patches are merged; a layer before the last one of the tower."""
    own = tokenizer(TOKENS)
    config = transformers.Mistral3Config(
        vision_config=dict(PIXTRAL),
        text_config={**TEXT, "model_type": "mistral", "sliding_window": None},
        image_token_index=own.convert_tokens_to_ids("[IMG]"),
        vision_feature_layer=-2,
        spatial_merge_size=2,
        multimodal_projector_bias=True,
        tie_word_embeddings=False,
    )
    processor = PixtralProcessor(
        image_processor=_image_processor(4), tokenizer=own, patch_size=4, spatial_merge_size=2
    )
    _save(transformers.Mistral3ForConditionalGeneration(config), processor, folder)


def mistral_large4(folder: Path) -> None:
    """Mistral Large 4: the layers of the text share latents; published tensor names."""
    own = tokenizer(TOKENS)
    config = transformers.MistralLarge4Config(
        vision_config=dict(PIXTRAL),
        text_config={**MISTRAL_LARGE4, **WHOLE_PANELS, "vocab_size": TEXT["vocab_size"]},
        image_token_index=own.convert_tokens_to_ids("[IMG]"),
    )
    processor = PixtralProcessor(
        image_processor=_image_processor(4), tokenizer=own, patch_size=4, spatial_merge_size=2
    )
    _save(transformers.MistralLarge4ForConditionalGeneration(config), processor, folder)


def lighton_ocr(folder: Path) -> None:
    """LightOnOCR: Qwen3, and no tokens for lines; embeddings and head are tied."""
    own = tokenizer(TOKENS, extra_special_tokens=NAMED)
    config = transformers.LightOnOcrConfig(
        vision_config=dict(PIXTRAL),
        text_config={**TEXT, "model_type": "qwen3"},
        image_token_id=own.convert_tokens_to_ids("[IMG]"),
        spatial_merge_size=2,
        tie_word_embeddings=True,
    )
    processor = transformers.LightOnOcrProcessor(
        image_processor=_image_processor(8), tokenizer=own, patch_size=4, spatial_merge_size=2
    )
    _save(transformers.LightOnOcrForConditionalGeneration(config), processor, folder)


MODELS: Final = {
    "lighton_ocr": VisionModel(lighton_ocr, "[IMG]"),
    "mistral3": VisionModel(mistral3, "[IMG]", two_ranks=True),
    "mistral_large4": VisionModel(mistral_large4, "[IMG]", blocks=(26, 30, 34)),
    "pixtral": VisionModel(pixtral, "[IMG]"),
}
