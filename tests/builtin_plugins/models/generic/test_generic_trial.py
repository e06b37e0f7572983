"""What the trial reads from masks, and what it rejects."""

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

from builtin_plugins.models.generic import key_bias
from builtin_plugins.models.generic.spec import spec
from builtin_plugins.models.generic.trial import Marker, mask_limits
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
def test_sliding_window_is_read_from_mask(size: int) -> None:
    assert mask_limits(Marker(sliding_window_causal_mask_function(size))) == (size, None)


@pytest.mark.parametrize("size", [2, 7, 24, 8192])
def test_chunk_size_is_read_from_mask(size: int) -> None:
    assert mask_limits(
        Marker(chunked_causal_mask_function(size, torch.zeros(1, dtype=torch.int64)))
    ) == (
        None,
        size,
    )


def test_causal_mask_has_no_window_or_chunk() -> None:
    assert mask_limits(Marker(causal_mask_function)) == (None, None)


@pytest.mark.parametrize(
    "mask", [bidirectional_mask_function, lambda b, h, q, k: (k <= q) & (k % 2 == 0)]
)
def test_other_masks_are_rejected(mask: Any) -> None:
    with pytest.raises(ModelError, match="neither causal nor a sliding window nor chunks"):
        mask_limits(Marker(mask))


def test_attention_calls_have_their_layers_kv_specs(checkpoint: Callable[[str], Path]) -> None:
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
        ("mamba", "recurrent state besides attention"),
        ("lfm2", "layers of type conv"),
        ("gptj", "does not use transformers' attention interface"),
        ("bart", "counts positions itself"),
    ],
)
def test_unsupported_config_error_names_reason(model_type: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        read(model_type)


def test_batch_dependent_positions_are_rejected() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(ModelError, match=r"RoPE \(dynamic\) depends on the longest text"):
        read("seed_oss", rope_parameters=rope)


def test_model_with_own_positions_is_rejected_after_loading(
    checkpoint: Callable[[str], Path],
) -> None:
    with pytest.raises(
        ModelError, match="runs in transformers, but it counts the tokens of its own cache"
    ):
        load(checkpoint("llama4_text"))


def test_model_with_custom_masks_is_rejected_after_loading(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_bias, "install", lambda model: None)
    with pytest.raises(ModelError, match="compute with the attention mask"):
        load(checkpoint("doge"))


def test_positions_after_padding_shorten_the_context(
    checkpoint: Callable[[str], Path],
) -> None:
    load(checkpoint("roberta"), max_positions=512 - 299)
    with pytest.raises(
        ModelError, match="expected up to 213, because positions start at 299 of 512"
    ):
        load(checkpoint("roberta"), max_positions=512)


def test_unknown_model_type_is_rejected() -> None:
    with pytest.raises(ModelError, match="knows no model_type 'unknown'"):
        spec(SimpleNamespace(model_type="unknown", architectures=["UnknownForCausalLM"]))


def test_encoder_is_rejected_as_causal_model() -> None:
    with pytest.raises(ModelError, match="no causal language model 'BertModel'"):
        read("bert", architectures=["BertModel"])


def test_generic_model_rejects_tensor_parallelism() -> None:
    with pytest.raises(ConfigError, match="not split over 2 ranks"):
        read("beam").check_split(2, 1)


def test_unused_tensor_fails_the_load(checkpoint: Callable[[str], Path]) -> None:
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


def test_tensors_of_matching_dtype_are_not_copied(checkpoint: Callable[[str], Path]) -> None:
    stored_here: dict[str, torch.Tensor] = {}
    model = load(checkpoint("llama"), stored_here.update)
    ours = {parameter.data_ptr() for parameter in model.parameters()}
    assert {tensor.data_ptr() for tensor in stored_here.values()} == ours


def test_meta_device_cache_specs_equal_loaded(
    checkpoint: Callable[[str], Path],
) -> None:
    config = SimpleNamespace(**json.loads((checkpoint("beam") / "config.json").read_text()))
    sketch: Any = spec(config).build(replace(plain_context(), device="meta"))
    assert [layer.spec for layer in sketch.kv_layers] == [
        layer.spec for layer in load(checkpoint("beam")).kv_layers
    ]
    assert all(parameter.is_meta for parameter in sketch.parameters())
