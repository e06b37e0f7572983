"""InternVL and Aya Vision: images are cut into tiles, with a small one of the whole image."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import transformers

from tests.builtin_plugins.models.vision.checkpoints.common import (
    IMAGE,
    SIGLIP,
    TEMPLATE,
    TEXT,
    VisionModel,
    save,
    save_parts,
    tokenizer,
)

TOKENS: Final = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
INTERN_NAMED: Final = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
AYA_TOKENS: Final = [
    *("<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>"),
    *("TILE", "TILE_GLOBAL"),
]


def _tiles() -> Any:
    return transformers.GotOcr2ImageProcessorPil(
        size={"height": 16, "width": 16}, crop_to_patches=True, max_patches=4
    )


def internvl(folder: Path) -> None:
    """InternVL 3: norms of queries and keys in the tower, patches shuffled into tokens."""
    own = tokenizer([*TOKENS, *INTERN_NAMED.values()], extra_special_tokens=INTERN_NAMED)
    config = transformers.InternVLConfig(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": 16,
            "patch_size": 4,
            "attention_bias": True,
            "use_qk_norm": True,
            "norm_type": "rms_norm",
        },
        text_config={**TEXT, "model_type": "qwen2"},
        image_token_id=own.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        vision_feature_layer=-2,
        tie_word_embeddings=False,
    )
    save(transformers.InternVLForConditionalGeneration(config), folder)
    save_parts(folder, _tiles(), own, "<IMG_CONTEXT>")
    (folder / "processor_config.json").write_text(
        '{"processor_class": "InternVLProcessor", "image_seq_length": 4}'
    )


def qianfan_ocr(folder: Path) -> None:
    """Qianfan-OCR: prompts have another text for an image than its placeholder tokens."""
    special = [*TOKENS, *INTERN_NAMED.values(), "<image>"]
    own = tokenizer(special, extra_special_tokens=INTERN_NAMED)
    config = transformers.QianfanOCRConfig(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": (16, 16),
            "patch_size": (4, 4),
        },
        text_config={**TEXT, "model_type": "qwen3"},
        image_token_id=own.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
    )
    save(transformers.QianfanOCRForConditionalGeneration(config), folder)
    processor = transformers.QianfanOCRProcessor(
        image_processor=_tiles(),
        tokenizer=own,
        image_seq_length=4,
        chat_template=TEMPLATE.replace(IMAGE, "<image>"),
    )
    processor.save_pretrained(folder)


def aya_vision(folder: Path) -> None:
    """Aya Vision: tiles with names, and Cohere 2 with windows."""
    own = tokenizer([*TOKENS, *AYA_TOKENS])
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    text = {"model_type": "cohere2", "layer_types": kinds, "sliding_window": 24}
    config = transformers.AyaVisionConfig(
        vision_config=dict(SIGLIP),
        text_config={**TEXT, **text, "pad_token_id": 0},
        image_token_index=own.convert_tokens_to_ids("<|IMG_PATCH|>"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        downsample_factor=2,
        tie_word_embeddings=True,
    )
    save(transformers.AyaVisionForConditionalGeneration(config), folder)
    processor = transformers.AyaVisionProcessor(
        image_processor=_tiles(),
        tokenizer=own,
        patch_size=4,
        img_size=16,
        downsample_factor=2,
        chat_template=TEMPLATE.replace(IMAGE, "<image>"),
    )
    processor.save_pretrained(folder)


MODELS: Final = {
    "aya_vision": VisionModel(aya_vision, "<image>", blocks=(20, 22, 24)),
    "internvl": VisionModel(internvl, "<IMG_CONTEXT>", two_ranks=True),
    "qianfan_ocr": VisionModel(qianfan_ocr, "<image>"),
}
