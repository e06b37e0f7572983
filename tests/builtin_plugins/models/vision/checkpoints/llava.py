"""LLaVA and its kin: CLIP and Llama."""

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

CLIP: Final = {
    "model_type": "clip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 7,
    "projection_dim": 32,
}


def _llava(folder: Path, classes: tuple[Any, Any], **fields: Any) -> None:
    own = tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"])
    config = classes[0](
        vision_config=dict(CLIP),
        text_config={**TEXT, "model_type": "llama"},
        image_token_index=own.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
        **fields,
    )
    save(classes[1](config), folder)
    processor = transformers.LlavaProcessor(
        image_processor=transformers.CLIPImageProcessorPil(
            size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
        ),
        tokenizer=own,
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE.replace(IMAGE, "<image>"),
    )
    processor.save_pretrained(folder)


def llava(folder: Path) -> None:
    """LLaVA 1.5: CLIP and Llama."""
    classes = transformers.LlavaConfig, transformers.LlavaForConditionalGeneration
    chosen = {"vision_feature_layer": -2, "vision_feature_select_strategy": "default"}
    _llava(folder, classes, **chosen)


def vip_llava(folder: Path) -> None:
    """VIP-LLaVA, by the generic entry: several layers of CLIP."""
    classes = transformers.VipLlavaConfig, transformers.VipLlavaForConditionalGeneration
    _llava(folder, classes, vision_feature_layers=[-2, -1, 1])


MODELS: Final = {
    "llava": VisionModel(llava, "<image>", two_ranks=True),
    "vip_llava": VisionModel(vip_llava, "<image>"),
}
