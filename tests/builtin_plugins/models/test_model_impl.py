"""`--model-impl`: an architecture's own entry, or the general one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.models.generic.module_spec import GenericSpec
from core.config import EngineConfig
from core.config.sections import ModelConfig
from core.errors import ModelError
from core.model_spec.decoder import DecoderSpec
from core.models.layers.loading import read_model
from core.plugin.registry import Registry


@pytest.fixture
def read(
    tmp_path: Path, registry: Registry, checkpoint: Callable[[str], Path]
) -> Callable[..., Any]:
    """Return a function that reads a tiny model's facts under `--model-impl`, its config
    changed.
    """

    def facts(name: str, model_impl: str, **changes: Any) -> Any:
        config = json.loads((checkpoint(name) / "config.json").read_text()) | changes
        (tmp_path / "config.json").write_text(json.dumps(config))
        settings = EngineConfig(ModelConfig(str(tmp_path), model_impl=model_impl))
        source = registry.find_model(str(tmp_path), settings)
        assert source is not None
        return read_model(settings, source, registry)[0]

    return facts


@pytest.mark.parametrize("model_impl", ["auto", "native", "vllm"])
def test_native_architecture_is_preferred(model_impl: str, read: Callable[..., Any]) -> None:
    assert isinstance(read("LlamaForCausalLM", model_impl), DecoderSpec)


def test_model_impl_transformers_builds_any_architecture(read: Callable[..., Any]) -> None:
    assert isinstance(read("LlamaForCausalLM", "transformers"), GenericSpec)


def test_transformers_builds_unknown_architectures(read: Callable[..., Any]) -> None:
    assert isinstance(read("beam", "auto"), GenericSpec)


def test_model_impl_native_requires_own_entry(read: Callable[..., Any]) -> None:
    with pytest.raises(
        ModelError, match="no loaded plugin knows the architecture 'BeamForCausalLM'"
    ):
        read("beam", "native")


def test_unknown_model_impl_is_rejected(read: Callable[..., Any]) -> None:
    with pytest.raises(
        ModelError, match=r"--model-impl 'terratorch' .*: auto, native, vllm, transformers\."
    ):
        read("beam", "terratorch")


def test_unknown_architecture_error_suggests_nearest(
    read: Callable[..., Any],
) -> None:
    changes = {"architectures": ["LlamaForCausalLN"], "model_type": "mamba"}
    with pytest.raises(ModelError) as refused:
        read("LlamaForCausalLM", "auto", **changes)
    assert "did you mean 'LlamaForCausalLM' or 'Llama4ForCausalLM'?" in str(refused.value)
    assert (
        "transformers, for any other: transformers has no causal language model 'LlamaForCausalLN'"
        in str(refused.value)
    )


def test_model_impl_transformers_error_has_only_its_reason(read: Callable[..., Any]) -> None:
    with pytest.raises(ModelError) as refused:
        read("mamba", "transformers")
    assert "transformers has MambaForCausalLM, but its layers have recurrent state" in str(
        refused.value
    )
    assert "no loaded plugin" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "of_vllm"),
    [
        ("LlamaForCausalLM", "TransformersForCausalLM"),
        ("MixtralForCausalLM", "TransformersMoEForCausalLM"),
    ],
)
def test_vllms_names_of_transformers_modules_give_the_class_of_the_model_type(
    name: str, of_vllm: str, read: Callable[..., Any]
) -> None:
    found = read(name, "auto", architectures=[of_vllm])
    assert isinstance(found, GenericSpec)
    assert found.model_class.__name__ == name


def test_vllms_name_of_a_model_type_without_class_is_rejected(read: Callable[..., Any]) -> None:
    with pytest.raises(ModelError, match="transformers has no causal language model"):
        read("LlamaForCausalLM", "auto", architectures=["TransformersMultiModalForCausalLM"])
