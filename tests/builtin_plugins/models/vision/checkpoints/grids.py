"""Other families than Qwen-VL and GLM that read an image as one grid of patches, of any size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import transformers

from builtin_plugins.input_processors.transformers.kimi import Kimi_K25ImageProcessorPil
from tests.builtin_plugins.models.vision.checkpoints.common import (
    IMAGE,
    TEMPLATE,
    TEXT,
    VisionModel,
    save,
    save_parts,
    tokenizer,
)

PAD: Final = "<|image_pad|>"
PADDLE: Final = "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>"
WINDOWS: Final = {
    "depth": 3,
    "hidden_size": 32,
    "num_heads": 4,
    "intermediate_size": 48,
    "out_hidden_size": 64,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 16,
    "fullatt_block_indexes": [1],
}
"""A tower as that of Qwen2.5-VL."""
LAYERS: Final = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "patch_size": 4,
}
KIMI_TOKENS: Final = ("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>")
KIMI: Final = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
LATENTS: Final = {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 32,
}
"""A text part of DeepSeek V3."""
PIXELS: Final = {"shortest_edge": 256, "longest_edge": 4096}


def _save_padded(
    folder: Path,
    classes: tuple[Any, Any, str],
    image_processor: Any,
    vision: Mapping[str, Any],
    text: Mapping[str, Any],
) -> None:
    """Save a model with one placeholder token for an image in its prompts."""
    own = tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>", PAD, "<|video_pad|>"])
    ids = own.convert_tokens_to_ids
    config = classes[0](
        vision_config=dict(vision),
        text_config={**TEXT, **text},
        image_token_id=ids(PAD),
        video_token_id=ids("<|video_pad|>"),
        tie_word_embeddings=False,
    )
    save(classes[1](config), folder)
    save_parts(folder, image_processor, own, PAD, processor_class=classes[2])


def exaone4_5(folder: Path) -> None:
    """EXAONE 4.5: fewer heads of keys and values in the tower."""
    classes = (
        transformers.Exaone4_5_Config,
        transformers.Exaone4_5_ForConditionalGeneration,
        "Exaone4_5_Processor",
    )
    kinds = ["sliding_attention", "full_attention"] * 2
    text = {"num_hidden_layers": 4, "layer_types": kinds, "sliding_window": 12}
    image_processor = transformers.Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=256, max_pixels=4096
    )
    _save_padded(
        folder,
        classes,
        image_processor,
        {**WINDOWS, "num_key_value_heads": 2},
        {**text, "model_type": "exaone4"},
    )


def hyperclovax_v2(folder: Path) -> None:
    """HyperCLOVA X Vision 2: all embeddings are multiplied, those of images, too."""
    classes = (
        transformers.HyperCLOVAXVisionV2Config,
        transformers.HyperCLOVAXVisionV2ForConditionalGeneration,
        "HyperCLOVAXVisionV2Processor",
    )
    text = {
        "model_type": "hyperclovax",
        "embedding_multiplier": 3.0,
        "logits_scaling": 0.5,
        "residual_multiplier": 0.7,
    }
    image_processor = transformers.Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=256, max_pixels=4096
    )
    vision = {**WINDOWS, "model_type": "qwen2_5_vl_vision"}
    _save_padded(folder, classes, image_processor, vision, text)


def kimi_k25(folder: Path) -> None:
    """Kimi K2.5, images: latent attention and experts; images are padded, never enlarged."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *KIMI_TOKENS]
    own = tokenizer([*special, "<|kimi_k25_video_placeholder|>"])
    ids = own.convert_tokens_to_ids
    vision = {**LAYERS, "pos_emb_height": 6, "pos_emb_width": 6}
    config = transformers.Kimi_K25Config(
        vision_config=vision,
        text_config={**TEXT, **LATENTS, "model_type": "deepseek_v3"},
        projection_hidden_size=32,
        image_token_id=ids("<|media_pad|>"),
        video_token_id=ids("<|kimi_k25_video_placeholder|>"),
        tie_word_embeddings=False,
    )
    save(transformers.Kimi_K25ForConditionalGeneration(config), folder)
    image_processor = Kimi_K25ImageProcessorPil(
        patch_size=4, merge_size=2, max_patches=120, size={"max_height": 12, "max_width": 12}
    )
    save_parts(folder, image_processor, own, KIMI, processor_class="Kimi_K25Processor")


def paddleocr_vl(folder: Path) -> None:
    """PaddleOCR-VL: three axes of positions, positions of patches interpolated, a tied head."""
    named = {"image_token": "<|IMAGE_PLACEHOLDER|>"}
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    special += ["<|IMAGE_START|>", "<|IMAGE_END|>", *named.values()]
    own = tokenizer(special, extra_special_tokens=named)
    ids = own.convert_tokens_to_ids
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    config = transformers.PaddleOCRVLConfig(
        vision_config={**LAYERS, "image_size": 24, "spatial_merge_size": 2},
        text_config={**TEXT, "rope_parameters": rope, "pad_token_id": None},
        image_token_id=ids("<|IMAGE_PLACEHOLDER|>"),
        video_token_id=VIDEO,
        vision_start_token_id=ids("<|IMAGE_START|>"),
        vision_end_token_id=ids("<|IMAGE_END|>"),
        tie_word_embeddings=True,
    )
    save(transformers.PaddleOCRVLForConditionalGeneration(config), folder)
    processor = transformers.PaddleOCRVLProcessor(
        image_processor=transformers.PaddleOCRVLImageProcessorPil(
            patch_size=4, merge_size=2, size=dict(PIXELS)
        ),
        tokenizer=own,
        chat_template=TEMPLATE.replace(IMAGE, PADDLE),
    )
    processor.save_pretrained(folder)


def video_llama_3(folder: Path) -> None:
    """VideoLLaMA 3, images: a token for each patch."""
    classes = (
        transformers.VideoLlama3Config,
        transformers.VideoLlama3ForConditionalGeneration,
        "VideoLlama3Processor",
    )
    image_processor = transformers.VideoLlama3ImageProcessorPil(
        patch_size=4, merge_size=1, size={"shortest_edge": 256, "longest_edge": 512}
    )
    _save_padded(folder, classes, image_processor, LAYERS, {"model_type": "qwen2"})


VIDEO: Final = 299
"""Id of a token of videos that no prompt has."""
MODELS: Final = {
    "exaone4_5": VisionModel(exaone4_5, PAD),
    "hyperclovax_v2": VisionModel(hyperclovax_v2, PAD),
    "kimi_k25": VisionModel(kimi_k25, KIMI),
    "paddleocr_vl": VisionModel(paddleocr_vl, PADDLE),
    "video_llama_3": VisionModel(video_llama_3, PAD),
}
