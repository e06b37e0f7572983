"""What the tiny random checkpoints share: fields of their configs, tokenizers, weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from safetensors.torch import load_file, save_file
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
SIGLIP: Final = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
    "vision_use_head": False,
}
"""A tower of SigLIP, for images of 16 patches."""


@dataclass(frozen=True)
class VisionModel:
    """How a model is made, and how it is tested."""

    make: Callable[[Path], None]
    image: str
    """The text of one image in a prompt."""
    shares_prefixes: bool = True
    """Whether prompts with different ends have equal prefixes in the cache."""
    two_ranks: bool = False
    """Whether it is tested with tensor parallelism, too."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Engine settings of its tests."""
    plans_memory: bool = True
    """Whether its KV cache is known before it is loaded; not with experts of transformers' own."""
    needs: str | None = None
    """A package that it needs and that may be missing."""
    blocks: tuple[int, ...] = (13, 14, 15)
    """Numbers of cache blocks, of which one preempts requests; with sliding windows, few do."""


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


def save(model: Any, folder: Path, *, deep_convolutions: bool = False) -> None:
    """Save a model with random weights large enough that images change every token.

    Many convolutions would make noise of them: with `deep_convolutions`, they keep its size.
    """
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.eval().named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                is_small = deep_convolutions and parameter.ndim == 4
                fan_in = parameter[0].numel() * 4 if is_small else parameter.shape[-1]
                parameter.copy_(noise * 2.0 / fan_in**0.5)
            else:
                parameter.copy_(noise * 0.1 + ("bias" not in name))
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the tensors of a saved model."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def save_parts(
    folder: Path, image_processor: Any, own_tokenizer: Any, image: str, **settings: Any
) -> None:
    """Save image processor and tokenizer of a processor that needs torchvision as a whole.

    `settings` are those of the processor itself.
    """
    own_tokenizer.chat_template = TEMPLATE.replace(IMAGE, image)
    own_tokenizer.save_pretrained(folder)
    image_processor.save_pretrained(folder)
    if settings:
        (folder / "processor_config.json").write_text(json.dumps(settings), encoding="utf-8")
