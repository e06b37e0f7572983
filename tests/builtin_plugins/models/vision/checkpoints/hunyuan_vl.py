"""HunYuan-VL: rows of patches end in an embedding of their own, positions have four axes."""

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

NAMED: Final = {
    "image_token": "<image>",
    "image_start_token": "<img>",
    "image_end_token": "</img>",
}
PROMPT: Final = "<img><image></img>"


def hunyuan_vl(folder: Path) -> None:
    """HunYuan-VL: a stretched base of positions with four axes, norms after the rotation."""
    own = tokenizer(
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *NAMED.values()],
        extra_special_tokens=NAMED,
    )
    ids = own.convert_tokens_to_ids
    rope = {"rope_type": "xdrope", "alpha": 8.0, "factor": 1.0, "rope_theta": 10000.0}
    config = transformers.HunYuanVLConfig(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "out_hidden_size": 64,
            "patch_size": 4,
            "max_image_size": 48,
        },
        text_config={**TEXT, "rope_parameters": {**rope, "xdrope_section": [2, 2, 2, 2]}},
        image_token_id=ids("<image>"),
        im_start_id=ids("<img>"),
        im_end_id=ids("</img>"),
    )
    save(transformers.HunYuanVLForConditionalGeneration(config), folder)
    processor = transformers.HunYuanVLProcessor(
        image_processor=transformers.HunYuanVLImageProcessorPil(
            patch_size=4, size={"shortest_edge": 256, "longest_edge": 2304}
        ),
        tokenizer=own,
        chat_template=TEMPLATE.replace(IMAGE, PROMPT),
    )
    processor.save_pretrained(folder)


MODELS: Final = {"hunyuan_vl": VisionModel(hunyuan_vl, PROMPT)}
