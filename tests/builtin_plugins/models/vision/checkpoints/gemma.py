"""Gemma with images: their tokens see each other."""

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


def gemma3(folder: Path) -> None:
    """Gemma 3: tokens of an image see each other; windows shorter than an image and its text."""
    special = ["<eos>", "<bos>", "<pad>", "<|im_start|>", "<|im_end|>"]
    special += ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]
    named = {
        "image_token": "<image_soft_token>",
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
    }
    own = tokenizer(special, extra_special_tokens=named)
    ids = own.convert_tokens_to_ids
    kinds = ["sliding_attention", "full_attention"] * 2
    text = {"num_hidden_layers": 4, "layer_types": kinds, "sliding_window": 12}
    config = transformers.Gemma3Config(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 32,
            "patch_size": 4,
        },
        text_config={**TEXT, **text, "query_pre_attn_scalar": 16},
        mm_tokens_per_image=16,
        boi_token_index=ids("<start_of_image>"),
        eoi_token_index=ids("<end_of_image>"),
        image_token_index=ids("<image_soft_token>"),
    )
    save(transformers.Gemma3ForConditionalGeneration(config), folder)
    processor = transformers.Gemma3Processor(
        image_processor=transformers.Gemma3ImageProcessorPil(size={"height": 32, "width": 32}),
        tokenizer=own,
        image_seq_length=16,
        chat_template=TEMPLATE.replace(IMAGE, "<start_of_image>"),
    )
    processor.save_pretrained(folder)


MODELS: Final = {"gemma3": VisionModel(gemma3, "<start_of_image>", two_ranks=True)}
