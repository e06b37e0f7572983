"""Configs of vision-language models become decoders with towers, or are refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from builtin_plugins.models.generic.spec import spec as generic_spec
from builtin_plugins.models.vision import refusals
from builtin_plugins.models.vision.families import FAMILIES
from builtin_plugins.models.vision.image_text import ImageTextSpec
from builtin_plugins.models.vision.plugin import SPEC, engine_models
from builtin_plugins.models.vision.refusals import REFUSED
from builtin_plugins.models.vision.spec import is_image_text, spec
from core.api import ConfigError, ModelError
from core.model_spec.decoder import DecoderSpec


def config_of(model_type: str, architecture: str, **changes: Any) -> Any:
    fields = transformers.CONFIG_MAPPING[model_type]().to_dict()
    fields |= {"architectures": [architecture], **changes}
    return SimpleNamespace(**json.loads(json.dumps(fields, default=str)))


def qwen2_vl(**changes: Any) -> DecoderSpec:
    return spec(config_of("qwen2_vl", "Qwen2VLForConditionalGeneration", **changes))


def test_native_entries_are_families() -> None:
    writing = {entry.name for entry in engine_models() if entry.target == SPEC}
    assert writing == set(FAMILIES)


def test_text_part_is_a_decoder_and_the_tower_names_its_placeholder() -> None:
    found = qwen2_vl(image_token_id=7)
    assert found.tower is not None
    assert found.tower.facts.placeholders == {"image": 7}
    assert not found.tower.facts.look_ahead
    rope = found.layers[0].attention.rope  # type: ignore[union-attr]
    assert rope is not None
    assert rope.sections == (16, 24, 24)


def test_tokens_of_gemma_3_images_see_ahead() -> None:
    found = spec(config_of("gemma3", "Gemma3ForConditionalGeneration"))
    assert found.tower is not None
    assert found.tower.facts.look_ahead


@pytest.mark.parametrize(
    ("stored", "own"),
    [
        ("language_model.model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.language_model.norm.weight", "model.norm.weight"),
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("language_model.model.blocks.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        (
            "language_model.model.encoder.layers.0.mlp.up_proj.weight",
            "model.layers.0.mlp.up_proj.weight",
        ),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.visual.blocks.0.norm1.weight", "model.visual.blocks.0.norm1.weight"),
    ],
)
def test_every_layout_of_text_tensors_is_known(stored: str, own: str) -> None:
    for pattern, replacement in qwen2_vl().names.rename:
        stored = re.sub(pattern, replacement, stored)
    assert stored == own


@pytest.mark.parametrize(
    ("model_type", "architecture", "words"),
    [
        ("blip", "BlipForConditionalGeneration", "by cross-attention"),
        ("cohere_compass", "CohereCompassForConditionalGeneration", "positions in several axes"),
        ("udop", "UdopForConditionalGeneration", "an encoder reads its images"),
        ("glm5_next", "Glm5NextForConditionalGeneration", "recurrent state besides attention"),
    ],
)
def test_unknown_forms_are_refused_with_the_reason(
    model_type: str, architecture: str, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        spec(config_of(model_type, architecture))


def test_text_part_without_a_native_decoder_runs_through_transformers() -> None:
    found = spec(config_of("aria", "AriaForConditionalGeneration"))
    assert isinstance(found, ImageTextSpec)
    assert found.tower.facts.placeholders == {"image": 9}
    with pytest.raises(ConfigError, match="not split over 2 ranks"):
        found.check_split(2, 1)


def test_model_impl_transformers_takes_a_family_with_its_own_modules() -> None:
    config = config_of("qwen3_vl", "Qwen3VLForConditionalGeneration")
    assert isinstance(spec(config), DecoderSpec)
    assert isinstance(generic_spec(config), ImageTextSpec)


def test_config_without_a_placeholder_is_refused() -> None:
    with pytest.raises(ModelError, match="image_token_id: got None in config"):
        spec(config_of("minicpmv4_6", "MiniCPMV4_6ForConditionalGeneration"))


def test_pipeline_stages_are_refused() -> None:
    found = qwen2_vl()
    found.check_split(1, 1)
    with pytest.raises(ConfigError, match="--pipeline-parallel-size: got 2; expected 1"):
        found.check_split(1, 2)


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("fast_vlm", "FastVlmForConditionalGeneration"),
        ("gemma3n", "Gemma3nForConditionalGeneration"),
    ],
)
def test_tower_of_timm_is_refused_without_it(
    monkeypatch: pytest.MonkeyPatch, model_type: str, architecture: str
) -> None:
    monkeypatch.setattr(refusals, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install timm"):
        spec(config_of(model_type, architecture))


def test_refused_models_are_image_text_models_without_a_family() -> None:
    assert [name for name in REFUSED if name in FAMILIES or not is_image_text(name)] == []


def test_folder_of_tests_has_a_checkpoint_of_every_family() -> None:
    modules = Path(__file__).with_name("checkpoints").glob("*.py")
    text = "".join(module.read_text(encoding="utf-8") for module in modules)
    assert [name for name in FAMILIES if f"transformers.{name}" not in text] == []
