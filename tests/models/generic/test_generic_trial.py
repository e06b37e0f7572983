"""What the trial finds out about masks, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from builtin_plugins.models.generic.spec import spec
from builtin_plugins.models.generic.trial import Marker, reach
from core.errors import ConfigError, ModelError
from core.model_spec.kv import FullAttention, SlidingWindow
from core.testing.checkpoints import tiny_config
from core.testing.one_sequence import plain_context


def read(model_type: str, **changes: Any) -> Any:
    config = json.loads(tiny_config(model_type).to_json_string()) | changes
    return spec(SimpleNamespace(**{"model_type": model_type, **config}))


def load(
    folder: Path,
    change: Callable[[dict[str, torch.Tensor]], object] = lambda tensors: None,
    max_positions: int = 0,
) -> Any:
    config = SimpleNamespace(**json.loads((folder / "config.json").read_text()))
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    model = replace(spec(config), max_positions=max_positions).build(plain_context())
    model.load_weights(tensors.items())
    return model


@pytest.mark.parametrize("size", [1, 7, 24, 4096])
def test_a_window_is_read_from_its_mask(size: int) -> None:
    assert reach(Marker(sliding_window_causal_mask_function(size))) == (size, None)


@pytest.mark.parametrize("size", [2, 7, 24, 8192])
def test_a_chunk_is_read_from_its_mask(size: int) -> None:
    assert reach(Marker(chunked_causal_mask_function(size, torch.zeros(1, dtype=torch.int64)))) == (
        None,
        size,
    )


def test_a_causal_mask_has_neither() -> None:
    assert reach(Marker(causal_mask_function)) == (None, None)


@pytest.mark.parametrize(
    "mask", [bidirectional_mask_function, lambda b, h, q, k: (k <= q) & (k % 2 == 0)]
)
def test_any_other_mask_is_refused(mask: Any) -> None:
    with pytest.raises(ModelError, match="neither causal nor a window nor chunks"):
        reach(Marker(mask))


def test_each_attention_call_keeps_what_its_layer_sees(checkpoint: Callable[[str], Path]) -> None:
    specs = [layer.spec for layer in load(checkpoint("beam")).kv_layers]
    assert [type(found) for found in specs] == [
        SlidingWindow,
        SlidingWindow,
        SlidingWindow,
        FullAttention,
    ]


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("mamba", "running state beside attention"),
        ("lfm2", "layers of type conv"),
        ("gptj", "does not go through transformers' attention interface"),
        ("bart", "counts positions by itself"),
    ],
)
def test_a_config_says_why_it_cannot_be_served(model_type: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        read(model_type)


def test_positions_that_change_with_the_batch_are_refused() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(
        ModelError, match=r"rotary positions \(dynamic\) change with the longest text"
    ):
        read("seed_oss", rope_parameters=rope)


def test_a_model_that_counts_by_itself_is_refused_once_it_is_loaded(
    checkpoint: Callable[[str], Path],
) -> None:
    with pytest.raises(
        ModelError, match="runs in transformers, but it counts tokens in a cache of its own"
    ):
        load(checkpoint("llama4_text"))


def test_a_model_that_changes_its_masks_is_refused_once_it_is_loaded(
    checkpoint: Callable[[str], Path],
) -> None:
    with pytest.raises(ModelError, match="make something of their own of the mask"):
        load(checkpoint("doge"))


def test_positions_behind_that_of_padding_shorten_the_context(
    checkpoint: Callable[[str], Path],
) -> None:
    load(checkpoint("roberta"), max_positions=512 - 299)
    with pytest.raises(
        ModelError, match="start at 299 of 512; use a --max-model-len of at most 213"
    ):
        load(checkpoint("roberta"), max_positions=512)


def test_a_model_type_that_transformers_does_not_know_is_refused() -> None:
    with pytest.raises(ModelError, match="knows no model_type 'nobody'"):
        spec(SimpleNamespace(model_type="nobody", architectures=["NobodyForCausalLM"]))


def test_an_encoder_is_no_causal_model() -> None:
    with pytest.raises(ModelError, match="no causal language model 'BertModel'"):
        read("bert", architectures=["BertModel"])


def test_it_is_not_split_over_ranks() -> None:
    with pytest.raises(ConfigError, match="not split over 2 ranks"):
        read("beam").check_split(2, 1)


def test_every_tensor_is_used_or_the_load_fails_by_name(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("beam")
    with pytest.raises(ModelError, match=r"1 unexpected tensors: model\.stray"):
        load(folder, lambda tensors: tensors.update({"model.stray": torch.zeros(2)}))
    with pytest.raises(ModelError, match=r"1 missing tensors: model\.norm\.weight"):
        load(folder, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(ModelError, match=r"model\.norm\.weight: expected \[64\], found \[5\]"):
        load(folder, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(5)}))
    with pytest.raises(ModelError, match=r"stored as integers .* model\.norm\.weight"):
        load(
            folder,
            lambda tensors: tensors.update(
                {"model.norm.weight": torch.zeros(64, dtype=torch.int8)}
            ),
        )


def test_tensors_of_the_right_type_are_taken_as_they_are(checkpoint: Callable[[str], Path]) -> None:
    kept: dict[str, torch.Tensor] = {}
    model = load(checkpoint("llama"), kept.update)
    ours = {parameter.data_ptr() for parameter in model.parameters()}
    assert {tensor.data_ptr() for tensor in kept.values()} == ours


def test_a_plan_is_made_without_weights_and_is_what_loading_finds(
    checkpoint: Callable[[str], Path],
) -> None:
    config = SimpleNamespace(**json.loads((checkpoint("beam") / "config.json").read_text()))
    sketch: Any = spec(config).build(replace(plain_context(), device="meta"))
    assert [layer.spec for layer in sketch.kv_layers] == [
        layer.spec for layer in load(checkpoint("beam")).kv_layers
    ]
    assert all(parameter.is_meta for parameter in sketch.parameters())
