"""Mistral Large 4: bad fields by name, and tensors under the names of both layouts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core.errors import ConfigError, ModelError
from core.model_spec.mistral_names import RENAMES
from core.testing.one_sequence import Session, read_config

LARGE4 = "MistralLarge4ForCausalLM"
IDS = list(range(100, 133))


def renamed(name: str) -> str:
    """Return the name of a tensor in Hugging Face's layout."""
    for pattern, replacement in RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


@pytest.mark.parametrize(
    "sources",
    [[0, 1], [0, 0, 0, 3, 1, 3], [0, 1, 0, 3, 1, 2], [0, 1, 5, 3, 1, 5], [0, 1, -1, 3, 1, 3], 3],
    ids=["few", "no RoPE of its own", "shares itself", "later", "negative", "no list"],
)
def test_impossible_sources_of_latents_are_refused(
    sources: Any, checkpoint: Callable[[str], Path], spec_of: Callable[[str, Any], Any]
) -> None:
    stated = vars(read_config(checkpoint(LARGE4)))
    with pytest.raises(ModelError, match="kv_source_layers"):
        spec_of(LARGE4, SimpleNamespace(**{**stated, "kv_source_layers": sources}))


def test_stages_do_not_part_layers_that_share_latents(
    checkpoint: Callable[[str], Path], spec_of: Callable[[str, Any], Any]
) -> None:
    spec = spec_of(LARGE4, read_config(checkpoint(LARGE4)))
    assert [layer.kv_source_layer for layer in spec.layers] == [None, None, 0, None, 1, 3]
    with pytest.raises(ConfigError, match="--pipeline-parallel-size 2"):
        spec.check_split(1, 2)


def test_config_without_rope_parameters_is_refused(
    checkpoint: Callable[[str], Path], spec_of: Callable[[str, Any], Any]
) -> None:
    stated = vars(read_config(checkpoint(LARGE4)))
    with pytest.raises(ModelError, match="rope_parameters"):
        spec_of(LARGE4, SimpleNamespace(**{**stated, "rope_parameters": None}))


def test_tensors_load_under_the_names_of_both_layouts(
    checkpoint: Callable[[str], Path], load: Callable[..., Any]
) -> None:
    folder = checkpoint(LARGE4)
    published = load_file(folder / "model.safetensors")
    assert "layers.1.attention.wkv_a_with_mqa.weight" in published
    decoder = load(LARGE4, folder)
    expected = Session(decoder).step(IDS)
    for parameter in decoder.parameters():
        parameter.data.fill_(torch.nan)
    decoder.load_weights((renamed(name), tensor) for name, tensor in published.items())
    assert torch.equal(Session(decoder).step(IDS), expected)
