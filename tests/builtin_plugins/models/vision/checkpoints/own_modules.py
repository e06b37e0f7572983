"""Models with a text part that runs through transformers' own modules."""

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


def aria(folder: Path) -> None:
    """Aria: experts, and cross-attention from 8 queries to the patches of an image."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"]
    own = tokenizer(special, extra_special_tokens={"image_token": "<image>"})
    config = transformers.AriaConfig(
        vision_config={
            "model_type": "idefics3_vision",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": 980,
            "patch_size": 140,
        },
        text_config={**TEXT, "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 2},
        image_token_index=own.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-2,
        projector_patch_to_query_dict={49: 8},
    )
    save(transformers.AriaForConditionalGeneration(config), folder)
    processor = transformers.AriaProcessor(
        image_processor=transformers.AriaImageProcessorPil(),
        tokenizer=own,
        size_conversion={980: 8},
        chat_template=TEMPLATE.replace(IMAGE, "<image>"),
    )
    processor.save_pretrained(folder)


MODELS: Final = {"aria": VisionModel(aria, "<image>")}
