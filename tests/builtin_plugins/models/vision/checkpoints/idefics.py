"""Idefics and SmolVLM: images are cut into rows and columns, with a small one of the whole."""

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
    save_parts,
    tokenizer,
)

TOKENS: Final = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<fake_token_around_image>"),
    *("<end_of_utterance>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
]
VISION: Final = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}


def _fields(own: Any) -> dict[str, Any]:
    return {
        "vision_config": dict(VISION),
        "text_config": {**TEXT, "model_type": "llama", "pad_token_id": 0},
        "image_token_id": own.convert_tokens_to_ids("<image>"),
        "scale_factor": 2,
    }


def idefics2(folder: Path) -> None:
    """Idefics2: quarters and the whole image, resampled to a fixed number of tokens."""
    own = tokenizer(TOKENS)
    config = transformers.Idefics2Config(
        vision_config={**VISION, "image_size": 32},
        perceiver_config={
            "hidden_size": 64,
            "resampler_n_latents": 4,
            "resampler_depth": 2,
            "resampler_n_heads": 4,
            "resampler_head_dim": 16,
            "num_key_value_heads": 2,
        },
        text_config={**TEXT, "model_type": "mistral", "pad_token_id": 0, "sliding_window": None},
        image_token_id=own.convert_tokens_to_ids("<image>"),
    )
    save(transformers.Idefics2ForConditionalGeneration(config), folder)
    processor = transformers.Idefics2Processor(
        image_processor=transformers.Idefics2ImageProcessorPil(
            size={"shortest_edge": 16, "longest_edge": 32}, do_image_splitting=True
        ),
        tokenizer=own,
        image_seq_len=4,
        chat_template=TEMPLATE.replace(IMAGE, "<image>"),
    )
    processor.save_pretrained(folder)


def idefics3(folder: Path) -> None:
    """Idefics3: patches shuffled into tokens; positions interpolated by the patches of an image."""
    own = tokenizer(TOKENS)
    config = transformers.Idefics3Config(**_fields(own), tie_word_embeddings=False)
    save(transformers.Idefics3ForConditionalGeneration(config), folder)
    processor = transformers.Idefics3Processor(
        image_processor=transformers.Idefics3ImageProcessorPil(
            size={"longest_edge": 32}, max_image_size={"longest_edge": 16}
        ),
        tokenizer=own,
        image_seq_len=4,
        chat_template=TEMPLATE.replace(IMAGE, "<image>"),
    )
    processor.save_pretrained(folder)


def smolvlm(folder: Path) -> None:
    """SmolVLM: as Idefics3, with embeddings tied to the head."""
    own = tokenizer(TOKENS)
    config = transformers.SmolVLMConfig(**_fields(own), tie_word_embeddings=True)
    save(transformers.SmolVLMForConditionalGeneration(config), folder)
    image_processor = transformers.SmolVLMImageProcessorPil(
        size={"longest_edge": 32}, max_image_size={"longest_edge": 16}
    )
    save_parts(folder, image_processor, own, "<image>")
    (folder / "processor_config.json").write_text(
        '{"processor_class": "SmolVLMProcessor", "image_seq_len": 4}'
    )


MODELS: Final = {
    "idefics2": VisionModel(idefics2, "<image>"),
    "idefics3": VisionModel(idefics3, "<image>"),
    "smolvlm": VisionModel(smolvlm, "<image>"),
}
