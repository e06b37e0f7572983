"""Tiny random vision-language checkpoints with their processors: one function for each model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB: Final = 300
IMAGE: Final = "[IMAGE]"
"""The place of the placeholder in `TEMPLATE`."""
TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}[IMAGE]{% elif p['type'] == 'text' %}{{ p['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT: Final = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
}
"""Fields of a text config that most models share."""


@dataclass(frozen=True)
class VisionModel:
    """How a model is made, and the text of one image in a prompt."""

    make: Callable[[Path], None]
    image: str


def tokenizer(special: list[str], **extra: Any) -> Any:
    """Return a tokenizer of bytes, with special tokens after them; the first one ends texts."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: index for index, character in enumerate(alphabet)}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=special[0],
        pad_token=special[0],
        additional_special_tokens=special[1:],
        **extra,
    )


def save(model: Any, folder: Path) -> None:
    """Save a model with random weights large enough that images change every token."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.eval().named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise * 2.0 / parameter.shape[-1] ** 0.5)
            else:
                parameter.copy_(noise * 0.1 + ("bias" not in name))
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)


def save_parts(folder: Path, image_processor: Any, own_tokenizer: Any, image: str) -> None:
    """Save image processor and tokenizer of a processor that needs torchvision as a whole."""
    own_tokenizer.chat_template = TEMPLATE.replace(IMAGE, image)
    own_tokenizer.save_pretrained(folder)
    image_processor.save_pretrained(folder)


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


QWEN: Final = "<|vision_start|><|image_pad|><|vision_end|>"
QWEN_TOKENS: Final = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)


def _qwen(
    folder: Path, classes: tuple[Any, Any], vision: Mapping[str, Any], text: Mapping[str, Any]
) -> None:
    own = tokenizer(list(QWEN_TOKENS))
    ids = own.convert_tokens_to_ids
    config = classes[0](
        vision_config=dict(vision),
        text_config={**TEXT, **text},
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    save(classes[1](config), folder)
    image_processor = transformers.Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=256, max_pixels=4096
    )
    save_parts(folder, image_processor, own, QWEN)


def _rope(**more: Any) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    return {"rope_parameters": {**rope, **more}}


def qwen2_vl(folder: Path) -> None:
    """Qwen2-VL: positions with three axes."""
    vision = {
        "depth": 2,
        "embed_dim": 32,
        "num_heads": 4,
        "hidden_size": 64,
        "mlp_ratio": 2,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    classes = transformers.Qwen2VLConfig, transformers.Qwen2VLForConditionalGeneration
    _qwen(folder, classes, vision, _rope())


def qwen2_5_vl(folder: Path) -> None:
    """Qwen2.5-VL: windows in the tower."""
    vision = {
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
    classes = transformers.Qwen2_5_VLConfig, transformers.Qwen2_5_VLForConditionalGeneration
    _qwen(folder, classes, vision, _rope())


def qwen3_vl(folder: Path) -> None:
    """Qwen3-VL: interleaved sections, and deepstack."""
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "num_heads": 4,
        "intermediate_size": 48,
        "out_hidden_size": 64,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    }
    classes = transformers.Qwen3VLConfig, transformers.Qwen3VLForConditionalGeneration
    _qwen(folder, classes, vision, _rope(mrope_interleaved=True))


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


MODELS: Final[Mapping[str, VisionModel]] = {
    "gemma3": VisionModel(gemma3, "<start_of_image>"),
    "llava": VisionModel(llava, "<image>"),
    "qwen2_5_vl": VisionModel(qwen2_5_vl, QWEN),
    "qwen2_vl": VisionModel(qwen2_vl, QWEN),
    "qwen3_vl": VisionModel(qwen3_vl, QWEN),
    "vip_llava": VisionModel(vip_llava, "<image>"),
}
"""Models by name; a new one is a function and an entry here."""
