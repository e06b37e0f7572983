"""Models that read text in images: towers of SAM."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import transformers

from tests.builtin_plugins.models.vision.checkpoints.common import (
    IMAGE,
    TEMPLATE,
    TEXT,
    VisionModel,
    save,
    tokenizer,
)

LONG: Final = {"max_model_len": 4096, "max_num_batched_tokens": 300}
"""An image has 256 tokens and more in these models, whatever the size of its tower."""


def _sam(**fields: Any) -> dict[str, Any]:
    """Return a tower with a windowed layer and a global one."""
    return {
        "hidden_size": 16,
        "output_channels": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "mlp_dim": 24,
        "window_size": 14,
        "global_attn_indexes": [1],
        **fields,
    }


def got_ocr2(folder: Path) -> None:
    """GOT-OCR 2: 256 tokens an image, a tied head."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<imgpad>"]
    own = tokenizer(special)
    config = transformers.GotOcr2Config(
        vision_config=_sam(image_size=128, patch_size=2),
        text_config={**TEXT, "model_type": "qwen2", "max_position_embeddings": 4096},
        image_token_index=own.convert_tokens_to_ids("<imgpad>"),
        image_seq_length=256,
    )
    save(transformers.GotOcr2ForConditionalGeneration(config), folder)
    processor = transformers.GotOcr2Processor(
        image_processor=transformers.GotOcr2ImageProcessorPil(size={"height": 128, "width": 128}),
        tokenizer=own,
        chat_template=TEMPLATE.replace(IMAGE, "<img><imgpad></img>"),
    )
    processor.save_pretrained(folder)


def deepseek_ocr2(folder: Path) -> None:
    """DeepSeek-OCR 2: tiles of 144 queries, a whole view of 256, a separator; experts."""
    own = tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"])
    encoder = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
    }
    experts = {
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "n_routed_experts": 4,
        "n_shared_experts": 2,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "routed_scaling_factor": 1.5,
    }
    text = {name: value for name, value in TEXT.items() if name != "head_dim"}
    config = transformers.DeepseekOcr2Config(
        vision_config={
            "sam_config": _sam(image_size=64, patch_size=1, downsample_channels=[24, 32]),
            "encoder_config": encoder,
        },
        text_config={**text, **experts, "max_position_embeddings": 4096},
        image_token_id=own.convert_tokens_to_ids("<image>"),
    )
    save(transformers.DeepseekOcr2ForConditionalGeneration(config), folder)
    processor = transformers.DeepseekOcr2Processor(
        image_processor=transformers.DeepseekOcr2ImageProcessorPil(
            size={"height": 64, "width": 64}, tile_size=48
        ),
        tokenizer=own,
        patch_size=1,
        downsample_ratio=4,
        chat_template=TEMPLATE.replace(IMAGE, "<image>"),
    )
    processor.save_pretrained(folder)


MODELS: Final = {
    "deepseek_ocr2": VisionModel(deepseek_ocr2, "<image>", settings=LONG, blocks=(65, 66, 92, 93)),
    "got_ocr2": VisionModel(got_ocr2, "<img><imgpad></img>", settings=LONG, blocks=(37, 38, 39)),
}
