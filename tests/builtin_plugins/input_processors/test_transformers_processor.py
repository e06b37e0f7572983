"""The processors of transformers, as input processors."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("PIL", reason="Pillow is not installed")

from builtin_plugins.input_processors.transformers.processor import TransformersProcessor
from core.api import EngineConfig, InvalidRequest
from core.api.serving import RenderedText
from core.config.sections import ModelConfig
from tests.builtin_plugins.models.vision.checkpoints import MODELS
from tests.builtin_plugins.models.vision.parity import FIRST, SECOND


def processor_of(name: str, folder: Path) -> TransformersProcessor:
    MODELS[name].make(folder)
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    source: Any = SimpleNamespace(path=str(folder), hf_config=SimpleNamespace(**fields))
    return TransformersProcessor(source, EngineConfig(ModelConfig(str(folder))))


def test_minicpm_numbers_the_images_of_a_prompt(tmp_path: Path) -> None:
    made = processor_of("minicpmv4_6", tmp_path)
    items = [made.process("image", image, {}) for image in (FIRST, SECOND)]
    image = made.placeholders["image"]
    prompt = f"{image} and {image}"
    spans = [(0, len(image)), (len(prompt) - len(image), len(prompt))]
    expanded = str(made.expand(RenderedText(prompt, spans), items))
    first, second = expanded.split(" and ")
    assert first.startswith("<image_id>0</image_id><image>")
    assert second.startswith("<image_id>1</image_id><image>")
    ids = [made._tokenizer.convert_tokens_to_ids(image)] * 2
    by_ids = made._tokenizer.decode(made.expand_ids(ids, items))
    assert by_ids == first + second


@pytest.mark.parametrize("keyword", ["use_image_id", "downsample_mode"])
def test_settings_that_the_tower_cannot_follow_are_rejected(keyword: str, tmp_path: Path) -> None:
    made = processor_of("minicpmv4_6", tmp_path)
    with pytest.raises(InvalidRequest, match=f"got '{keyword}'; expected one of"):
        made.process("image", FIRST, {keyword: "4x"})


def test_marks_of_ovis2_are_placeholders_in_order(tmp_path: Path) -> None:
    made = processor_of("ovis2", tmp_path)
    item = made.process("image", FIRST, {})
    ids = made._tokenizer.encode(item.text, add_special_tokens=False)
    assert item.tensors["placeholder_ids"].tolist() == ids
    assert item.num_tokens == len(ids)
