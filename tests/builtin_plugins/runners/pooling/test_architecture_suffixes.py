"""The end of an architecture's name says what a model without an entry of its own is for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.config import EngineConfig
from core.config.sections import ModelConfig
from core.models.layers.loading import read_model
from core.plugin import load_plan, make_plan
from core.testing.checkpoints import tiny_config

TASKS = {
    "Qwen3Model": "embed",
    "Qwen3EmbeddingModel": "embed",
    "Qwen3ForTextEncoding": "embed",
    "Qwen3ForRewardModel": "embed",
    "Qwen3ForRewardModeling": "embed",
    "Qwen3ForSequenceClassification": "classify",
    "Qwen3ForTokenClassification": "classify",
    "Qwen3ClassificationModel": "classify",
}


@pytest.mark.parametrize("name", TASKS)
def test_suffix_of_an_architecture_gives_its_task(name: str, tmp_path: Path) -> None:
    config = json.loads(tiny_config("Qwen3ForCausalLM").to_json_string())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": [name]}))
    registry = load_plan(make_plan([]))
    settings = EngineConfig(ModelConfig(str(tmp_path)))
    source = registry.find_model(str(tmp_path), settings)
    assert source is not None
    spec, runner = read_model(settings, source, registry)
    assert runner.entry.name == "pooling"
    assert spec.pooling.task == TASKS[name]  # type: ignore[union-attr]
