"""Which entry builds a model: its architecture's own, or the one for any architecture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.models.generic.spec import GenericSpec
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
    """Return a function that reads a tiny model's facts under `--model-impl`, its config changed."""

    def facts(name: str, model_impl: str, **changes: Any) -> Any:
        config = json.loads((checkpoint(name) / "config.json").read_text()) | changes
        (tmp_path / "config.json").write_text(json.dumps(config))
        settings = EngineConfig(ModelConfig(str(tmp_path), model_impl=model_impl))
        source = registry.find_model(str(tmp_path), settings)
        assert source is not None
        return read_model(settings, source, registry)[0]

    return facts


@pytest.mark.parametrize("model_impl", ["auto", "native", "vllm"])
def test_an_architecture_with_an_entry_of_its_own_is_built_by_it(
    model_impl: str, read: Callable[..., Any]
) -> None:
    assert isinstance(read("LlamaForCausalLM", model_impl), DecoderSpec)


def test_transformers_builds_any_architecture_when_it_is_asked_to(read: Callable[..., Any]) -> None:
    assert isinstance(read("LlamaForCausalLM", "transformers"), GenericSpec)


def test_transformers_builds_what_nothing_else_does(read: Callable[..., Any]) -> None:
    assert isinstance(read("beam", "auto"), GenericSpec)


def test_only_an_entry_of_its_own_is_native(read: Callable[..., Any]) -> None:
    with pytest.raises(
        ModelError, match="no loaded plugin knows the architecture 'BeamForCausalLM'"
    ):
        read("beam", "native")


def test_an_unknown_word_is_refused_with_what_there_is(read: Callable[..., Any]) -> None:
    with pytest.raises(
        ModelError, match=r"--model-impl 'terratorch' .*: auto, native, vllm, transformers\."
    ):
        read("beam", "terratorch")


def test_an_unknown_architecture_names_the_nearest_and_why_transformers_cannot(
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


def test_the_verdict_alone_is_given_to_who_asks_for_transformers(read: Callable[..., Any]) -> None:
    with pytest.raises(ModelError) as refused:
        read("mamba", "transformers")
    assert "transformers has MambaForCausalLM, but its layers keep a running state" in str(
        refused.value
    )
    assert "no loaded plugin" not in str(refused.value)
