"""Llama 4: tiles and the whole image, experts, chunked attention."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import transformers

from builtin_plugins.input_processors.transformers.llama4 import Llama4ImageProcessorPil
from tests.builtin_plugins.models.vision.checkpoints.common import (
    TEXT,
    VisionModel,
    save,
    save_parts,
    tokenizer,
)

TOKENS: Final = (
    *("<|image|>", "<|image_start|>", "<|image_end|>", "<|patch|>"),
    *("<|tile_x_separator|>", "<|tile_y_separator|>"),
)


def llama4(folder: Path) -> None:
    """Llama 4: a projector after the tower, pixels shuffled; dense and sparse layers."""
    own = tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *TOKENS])
    config = transformers.Llama4Config(
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 4,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
            "vision_output_dim": 32,
        },
        text_config={
            **TEXT,
            "intermediate_size_mlp": 80,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "moe_layers": [1, 2],
            "no_rope_layers": [1, 0, 1],
            "attention_chunk_size": 16,
            "floor_scale": 8,
            "attn_scale": 0.3,
        },
        boi_token_index=own.convert_tokens_to_ids("<|image_start|>"),
        eoi_token_index=own.convert_tokens_to_ids("<|image_end|>"),
        image_token_index=own.convert_tokens_to_ids("<|patch|>"),
    )
    save(transformers.Llama4ForConditionalGeneration(config), folder)
    size = {"height": 16, "width": 16}
    image_processor = Llama4ImageProcessorPil(size=size, max_patches=4)
    save_parts(
        folder, image_processor, own, "<|image|>", processor_class="Llama4Processor", patch_size=4
    )


MODELS: Final = {
    "llama4": VisionModel(llama4, "<|image|>", two_ranks=True, blocks=(15, 16, 17, 18))
}
