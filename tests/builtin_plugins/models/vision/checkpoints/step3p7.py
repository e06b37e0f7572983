"""Step 3.7: a view of the whole image, and windows of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import transformers

from builtin_plugins.input_processors.transformers.step3p7 import Step3p7ImageProcessorPil
from tests.builtin_plugins.models.vision.checkpoints.common import (
    TEXT,
    VisionModel,
    save,
    save_parts,
    tokenizer,
)

MARKS: Final = ("<patch_start>", "<patch_end>", "<patch_newline>", "<im_start>", "<im_end>")


def step3p7(folder: Path) -> None:
    """Step 3.7: gated attention with windows, experts, strides after the tower."""
    own = tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<im_patch>", *MARKS])
    config = transformers.Step3p7Config(
        vision_config={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 32,
            "patch_size": 2,
            "mlp_ratio": 2.0,
            "max_position_embeddings": 256,
        },
        text_config={
            **TEXT,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 96,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "share_expert_dim": 32,
            "pad_token_id": 0,
        },
        image_token_id=own.convert_tokens_to_ids("<im_patch>"),
    )
    save(transformers.Step3p7ForConditionalGeneration(config), folder)
    image_processor = Step3p7ImageProcessorPil(
        size={"height": 32, "width": 32}, patch_size=16, vision_patch_size=2
    )
    save_parts(folder, image_processor, own, "<im_patch>", processor_class="Step3p7Processor")


MODELS: Final = {"step3p7": VisionModel(step3p7, "<im_patch>", blocks=(30, 34), plans_memory=False)}
