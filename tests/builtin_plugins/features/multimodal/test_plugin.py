"""The scheduler half is in engines of models with a tower, and in no other."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from builtin_plugins.features.multimodal.messages import NAME
from builtin_plugins.features.multimodal.plugin import engine_options, engine_scheduler_extensions
from core.api import ConfigError
from core.config import EngineConfig
from core.config.sections import ModelConfig
from core.plugin import Registry, load_plan, make_plan


def halves(folder: Path, registry: Registry | None = None, /, **options: Any) -> list[str]:
    """Return the names of the scheduler halves for the model of a folder."""
    registry = registry or load_plan(make_plan())
    config = EngineConfig(model=ModelConfig(model=str(folder)), options=options)
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("disable_chunked_mm_input", True),
        ("enable_mm_embeds", True),
        ("mm_encoder_cache_tokens", 64),
        ("mm_processor_cache_gb", 1.0),
        ("mm_processor_kwargs", {"size": 1}),
        ("trust_request_mm_kwargs", True),
    ],
)
def test_options_for_images_are_refused_for_text_models(
    tmp_path: Path, name: str, value: object
) -> None:
    write_config(tmp_path, transformers.LlamaConfig(architectures=["LlamaForCausalLM"]))
    default = next(option.default for option in engine_options() if option.name == name)
    assert halves(tmp_path, **{name: default}) == []
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(ConfigError, match=f"^{flag}: got .* reads text only. Remove the flag"):
        halves(tmp_path, **{name: value})


@pytest.mark.parametrize("launcher", [None, "elsewhere"])
@pytest.mark.parametrize("host", ["", "10.0.0.1"])
def test_models_that_read_images_are_refused_on_several_hosts(
    tmp_path: Path, launcher: str | None, host: str
) -> None:
    """The tensors of images are in one host's shared memory."""
    pytest.importorskip("zmq", reason="pyzmq is not installed")
    config = transformers.Qwen2VLConfig(architectures=["Qwen2VLForConditionalGeneration"])
    write_config(tmp_path, config)
    registry = load_plan(make_plan())
    registry.shared("launchers", list).append(SimpleNamespace(host=host))  # of the ranks
    options: dict[str, Any] = {} if launcher is None else {"launcher": launcher}
    if launcher is None and not host:
        assert halves(tmp_path, registry, **options) == [NAME]
    else:
        with pytest.raises(ConfigError, match=f"^MODEL: got {tmp_path}, which reads images, with"):
            halves(tmp_path, registry, **options)
    text_only = {"limit_mm_per_prompt": {"image": 0}}
    assert halves(tmp_path, registry, **options, **text_only) == [NAME]
