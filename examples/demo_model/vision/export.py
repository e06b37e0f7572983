"""Writes what the tower adds to the language model: the folder of `demo:vision`."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copyfile
from typing import Any, Final

from safetensors.torch import save_file
from transformers import (
    LlavaProcessor,
    PreTrainedTokenizerFast,
    SiglipImageProcessorPil,
)

from builtin_plugins.model_sources.api import LabelTower, tower_tensors
from examples.demo_model.vision.labels import LABELS
from examples.demo_model.vision.model import MEAN, NUM_TOKENS, PATCH, STD, VISION, WIDTH
from examples.demo_model.vision.scenes import SIZE
from examples.demo_model.vision.task import IMAGE

UNUSED: Final = "ÿ"
"""The byte 0xFF in the vocabulary, which no UTF-8 text has: its id becomes that of `IMAGE`."""
UNCHANGED: Final = ("chat_template.jinja", "generation_config.json")


def image_token_id(language_model: Path) -> int:
    """Return the id that stands for a patch of an image."""
    stated = json.loads((language_model / "tokenizer.json").read_text(encoding="utf-8"))
    found: int = stated["model"]["vocab"][UNUSED]
    return found


def save_vision(tower: LabelTower, language_model: Path, out: Path) -> None:
    """Write the folder: config, processor, tokenizer, weights of the tower."""
    out.mkdir(parents=True, exist_ok=True)
    _save_tokenizer(language_model, out)
    make: Any = LlavaProcessor
    processor = make(
        image_processor=SiglipImageProcessorPil(
            size={"height": SIZE, "width": SIZE}, image_mean=[MEAN] * 3, image_std=[STD] * 3
        ),
        tokenizer=PreTrainedTokenizerFast.from_pretrained(out),
        patch_size=PATCH,
        vision_feature_select_strategy="full",
        num_additional_image_tokens=0,
        image_token=IMAGE,
    )
    settings = processor.to_dict() | {"processor_class": "LlavaProcessor"}
    _write(out / "processor_config.json", settings)
    _write(out / "config.json", _config(language_model))
    for name in UNCHANGED:
        copyfile(language_model / name, out / name)
    save_file(tower_tensors(tower), out / "model.safetensors", metadata={"format": "pt"})


def _config(language_model: Path) -> dict[str, Any]:
    text = json.loads((language_model / "config.json").read_text(encoding="utf-8"))
    special = {name: text[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {
        "architectures": ["DemoVisionForConditionalGeneration"],
        "model_type": "llava",
        "text_config": text,
        "vision_config": VISION,
        "label_sizes": {name: len(values) for name, values in LABELS.items()},
        "soft_token_width": WIDTH,
        "image_token_index": image_token_id(language_model),
        "image_seq_length": NUM_TOKENS,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        **special,
    }


def _save_tokenizer(language_model: Path, out: Path) -> None:
    """Write the language model's tokenizer with `IMAGE` as one of its tokens."""
    stated = json.loads((language_model / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = stated["model"]["vocab"]
    token = vocab[UNUSED]
    stated["model"]["vocab"] = {
        IMAGE if number == token else text: number for text, number in vocab.items()
    }
    special = dict(stated["added_tokens"][0], id=token, content=IMAGE, special=True)
    stated["added_tokens"].insert(0, special)
    _write(out / "tokenizer.json", stated)
    settings = json.loads((language_model / "tokenizer_config.json").read_text(encoding="utf-8"))
    _write(out / "tokenizer_config.json", settings | {"image_token": IMAGE})


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
