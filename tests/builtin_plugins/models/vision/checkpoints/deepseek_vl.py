"""DeepSeek-VL and Janus: images padded to squares, and Llama."""

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
    tokenizer,
)

PLACEHOLDER: Final = "<image_placeholder>"
NAMED: Final = {
    "image_token": PLACEHOLDER,
    "boi_token": "<begin_of_image>",
    "eoi_token": "<end_of_image>",
}
TOKENS: Final = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *NAMED.values()]
SIGLIP_WITH_HEAD: Final = {**SIGLIP, "vision_use_head": True}
LLAMA: Final = {**TEXT, "model_type": "llama"}
SIZE: Final = {"height": 16, "width": 16}


def _save(folder: Path, model: Any, processor_class: Any, image_processor: Any) -> None:
    save(model, folder)
    processor = processor_class(
        image_processor=image_processor,
        tokenizer=tokenizer(TOKENS, extra_special_tokens=NAMED),
        num_image_tokens=16,
        chat_template=TEMPLATE.replace(IMAGE, PLACEHOLDER),
    )
    processor.save_pretrained(folder)


def _placeholder() -> int:
    return int(tokenizer(TOKENS).convert_tokens_to_ids(PLACEHOLDER))


def janus(folder: Path) -> None:
    """Janus: a tower of its own, and parts that generate images, which are not used."""
    config = transformers.JanusConfig(
        vision_config={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 16,
            "patch_size": 4,
            "mlp_ratio": 2.0,
            "projection_dim": 64,
            "num_image_tokens": 16,
        },
        vq_config={
            "embed_dim": 4,
            "num_embeddings": 16,
            "latent_channels": 32,
            "base_channels": 32,
            "channel_multiplier": [1, 1],
            "num_res_blocks": 1,
            "projection_dim": 64,
            "image_token_embed_dim": 64,
        },
        text_config=dict(LLAMA),
        image_token_id=_placeholder(),
        tie_word_embeddings=False,
    )
    model = transformers.JanusForConditionalGeneration(config)
    image_processor = transformers.JanusImageProcessorPil(size=SIZE, min_size=4)
    _save(folder, model, transformers.JanusProcessor, image_processor)


def deepseek_vl(folder: Path) -> None:
    """DeepSeek-VL: SigLIP."""
    config = transformers.DeepseekVLConfig(
        vision_config=SIGLIP_WITH_HEAD,
        text_config=dict(LLAMA),
        image_token_id=_placeholder(),
        tie_word_embeddings=True,
    )
    model = transformers.DeepseekVLForConditionalGeneration(config)
    image_processor = transformers.DeepseekVLImageProcessorPil(size=SIZE, min_size=4)
    _save(folder, model, transformers.DeepseekVLProcessor, image_processor)


def deepseek_vl_hybrid(folder: Path) -> None:
    """DeepSeek-VL of 7B: SigLIP for small images, and SAM for large ones."""
    config = transformers.DeepseekVLHybridConfig(
        vision_config=SIGLIP_WITH_HEAD,
        high_res_vision_config={
            "model_type": "sam_vision_model",
            "hidden_size": 32,
            "output_channels": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 64,
            "patch_size": 4,
            "window_size": 4,
            "global_attn_indexes": [1],
            "mlp_dim": 48,
        },
        text_config=dict(LLAMA),
        image_token_id=_placeholder(),
        tie_word_embeddings=False,
    )
    model = transformers.DeepseekVLHybridForConditionalGeneration(config)
    image_processor = transformers.DeepseekVLHybridImageProcessorPil(
        size=SIZE, min_size=4, high_res_size={"height": 64, "width": 64}
    )
    _save(folder, model, transformers.DeepseekVLHybridProcessor, image_processor)


MODELS: Final = {
    "deepseek_vl": VisionModel(deepseek_vl, PLACEHOLDER),
    "deepseek_vl_hybrid": VisionModel(deepseek_vl_hybrid, PLACEHOLDER),
    "janus": VisionModel(janus, PLACEHOLDER),
}
