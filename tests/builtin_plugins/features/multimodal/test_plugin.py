"""The scheduler half is in engines of models with a tower, and in no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

from builtin_plugins.features.multimodal.messages import NAME
from builtin_plugins.features.multimodal.plugin import engine_scheduler_extensions
from core.config import EngineConfig
from core.config.sections import ModelConfig
from core.plugin import load_plan, make_plan


def halves(folder: Path) -> list[str]:
    """Return the names of the scheduler halves for the model of a folder."""
    registry = load_plan(make_plan())
    config = EngineConfig(model=ModelConfig(model=str(folder)))
    return [half.name for half in engine_scheduler_extensions(config, registry)]


def write_config(folder: Path, config: transformers.PretrainedConfig, **changes: object) -> None:
    fields = json.loads(config.to_json_string(use_diff=False)) | changes
    (folder / "config.json").write_text(json.dumps(fields))


@pytest.mark.parametrize("field", ["vision_config", "supervision", "image_token_id"])
def test_text_models_have_no_half_whatever_their_fields_are_named(
    tmp_path: Path, field: str
) -> None:
    config = transformers.LlamaConfig(architectures=["LlamaForCausalLM"], num_hidden_layers=1)
    write_config(tmp_path, config, **{field: 7})
    assert halves(tmp_path) == []


def test_model_with_a_tower_has_the_half(tmp_path: Path) -> None:
    pytest.importorskip("zmq", reason="pyzmq is not installed")
    config = transformers.Qwen2VLConfig(architectures=["Qwen2VLForConditionalGeneration"])
    write_config(tmp_path, config)
    assert halves(tmp_path) == [NAME]
