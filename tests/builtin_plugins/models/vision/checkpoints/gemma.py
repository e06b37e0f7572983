"""Gemma with images: their tokens see each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import transformers

from tests.builtin_plugins.models.vision.checkpoints.common import (
    IMAGE,
    SIGLIP,
    TEMPLATE,
    TEXT,
    VOCAB,
    VisionModel,
    save,
    save_parts,
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


def gemma4(folder: Path) -> None:
    """Gemma 4: tokens of an image see each other in layers with a window; per-layer embeddings."""
    named = {
        "image_token": "<|image|>",
        "boi_token": "<|image>",
        "eoi_token": "<image|>",
        "audio_token": "<|audio|>",
        "boa_token": "<|audio>",
        "eoa_token": "<audio|>",
    }
    special = [
        "<eos>",
        "<bos>",
        "<pad>",
        "<|im_start|>",
        "<|im_end|>",
        *named.values(),
        "<|video|>",
    ]
    own = tokenizer(special, extra_special_tokens=named)
    ids = own.convert_tokens_to_ids
    config = transformers.Gemma4Config(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 192,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "patch_size": 4,
            "pooling_kernel_size": 2,
            "position_embedding_size": 64,
            "standardize": True,
        },
        audio_config=None,
        text_config={
            **TEXT,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 12,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB,
            "global_head_dim": 32,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 20.0,
            "use_bidirectional_attention": "vision",
            "pad_token_id": ids("<pad>"),
        },
        image_token_id=ids("<|image|>"),
        boi_token_id=ids("<|image>"),
        eoi_token_id=ids("<image|>"),
        video_token_id=ids("<|video|>"),
        audio_token_id=ids("<|audio|>"),
    )
    save(transformers.Gemma4ForConditionalGeneration(config), folder)
    image_processor = transformers.Gemma4ImageProcessorPil(
        patch_size=4, pooling_kernel_size=2, max_soft_tokens=70
    )
    save_parts(folder, image_processor, own, "<|image|>")


def _paligemma(folder: Path, text: Mapping[str, Any]) -> None:
    own = tokenizer(["<eos>", "<bos>", "<|im_start|>", "<|im_end|>"], bos_token="<bos>")
    image_processor = transformers.SiglipImageProcessorPil(size={"height": 16, "width": 16})
    image_processor.image_seq_length = 16
    processor = transformers.PaliGemmaProcessor(
        image_processor=image_processor,
        tokenizer=own,
        chat_template=TEMPLATE.replace(IMAGE, "<image>"),
    )
    vocab = len(own)
    config = transformers.PaliGemmaConfig(
        vision_config=dict(SIGLIP),
        text_config={**TEXT, **text, "vocab_size": vocab},
        image_token_index=own.convert_tokens_to_ids("<image>"),
        projection_dim=64,
    )
    save(transformers.PaliGemmaForConditionalGeneration(config), folder)
    processor.save_pretrained(folder)


def paligemma(folder: Path) -> None:
    """PaliGemma: all tokens of a prompt see each other; positions start at 1."""
    # Without the flag, transformers lets the tokens of a text-only prompt see each other, too,
    # with its SDPA attention, but not with its eager one.
    _paligemma(folder, {"model_type": "gemma", "use_bidirectional_attention": False})


def paligemma2(folder: Path) -> None:
    """PaliGemma 2: Gemma 2 with soft caps, and windows longer than a prompt."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    text = {"layer_types": kinds, "sliding_window": 80, "query_pre_attn_scalar": 16}
    _paligemma(folder, {"model_type": "gemma2", **text})


LONG: Final = {"max_num_batched_tokens": 96, "max_model_len": 320}
PREFIX: Final[dict[str, Any]] = {"settings": LONG, "shares_prefixes": False}
MODELS: Final = {
    "gemma3": VisionModel(gemma3, "<start_of_image>", two_ranks=True),
    "gemma4": VisionModel(gemma4, "<|image|>", settings=LONG, blocks=(20, 22, 24)),
    "paligemma": VisionModel(paligemma, "<image>", **PREFIX),
    "paligemma2": VisionModel(paligemma2, "<image>", **PREFIX, blocks=(20, 22, 24)),
}
