"""Mllama: layers of gated cross attention between those of Llama."""

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

BEGIN: Final = "<|begin_of_text|>"
PICTURE: Final = "<|image|>"
SPECIAL: Final = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", BEGIN),
    *(f"<|reserved_{i}|>" for i in range(32)),
    PICTURE,
)
"""Of 300 tokens of prompts, the last 8 are no tokens of the head: the placeholder is the first."""


def mllama(folder: Path) -> None:
    """Llama 3.2 Vision: the placeholder is no token of the head."""
    own = tokenizer(list(SPECIAL), bos_token=BEGIN)
    image_id = own.convert_tokens_to_ids(PICTURE)
    text = {name: value for name, value in TEXT.items() if name != "head_dim"}
    config = transformers.MllamaConfig(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_global_layers": 1,
            "attention_heads": 4,
            "vision_output_dim": 96,
            "image_size": 28,
            "patch_size": 14,
            "intermediate_layers_indices": [0, 1],
        },
        text_config={
            **text,
            "vocab_size": image_id,
            "num_hidden_layers": 4,
            "cross_attention_layers": [1, 3],
            "pad_token_id": None,
            "bos_token_id": own.bos_token_id,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        image_token_index=image_id,
    )
    save(transformers.MllamaForConditionalGeneration(config), folder)
    processor = transformers.MllamaProcessor(
        image_processor=transformers.MllamaImageProcessorPil(size={"height": 28, "width": 28}),
        tokenizer=own,
        chat_template=TEMPLATE.replace(IMAGE, PICTURE),
    )
    processor.save_pretrained(folder)


MODELS: Final = {
    # transformers completes prompts without a start token.
    "mllama": VisionModel(
        mllama,
        f"{PICTURE}{BEGIN}",
        two_ranks=True,
        settings={"block_size": 4},
        blocks=(60, 50, 40),
    )
}
