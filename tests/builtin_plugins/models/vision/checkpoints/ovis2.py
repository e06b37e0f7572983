"""Ovis2: an embedding table of visual tokens, and tokens that mark the grid of tiles."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import transformers

from tests.builtin_plugins.models.vision.checkpoints.common import (
    IMAGE,
    TEMPLATE,
    TEXT,
    VisionModel,
    save,
    tokenizer,
)

MARKS: Final = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")


def ovis2(folder: Path) -> None:
    """Ovis2: tiles and a thumbnail, strides of 2, a tied head."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<IMG_ATOM>", *MARKS]
    own = tokenizer(special)
    config = transformers.Ovis2Config(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 24,
            "patch_size": 4,
            "vocab_size": 40,
            "hidden_stride": 2,
        },
        text_config={**TEXT, "model_type": "qwen2", "tie_word_embeddings": True},
        image_token_id=own.convert_tokens_to_ids("<IMG_ATOM>"),
        visual_indicator_token_ids=own.convert_tokens_to_ids(list(MARKS)),
        hidden_size=64,
        vocab_size=300,
    )
    save(transformers.Ovis2ForConditionalGeneration(config), folder)
    processor = transformers.Ovis2Processor(
        image_processor=transformers.Ovis2ImageProcessorPil(
            size={"height": 24, "width": 24}, crop_to_patches=True, max_patches=4
        ),
        tokenizer=own,
        image_seq_length=9,
        chat_template=TEMPLATE.replace(IMAGE, "<image>"),
    )
    processor.save_pretrained(folder)


MODELS: Final = {"ovis2": VisionModel(ovis2, "<image>", two_ranks=True)}
