"""Old and new config.json formats give equal specs; invalid ones are rejected."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.errors import ModelError
from core.model_spec.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    YarnScaling,
)
from core.testing.one_sequence import read_config

BASE = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
SpecOf = Callable[[str, Any], Any]


def rope_of(spec_of: SpecOf, architecture: str, **fields: Any) -> Any:
    return spec_of(architecture, SimpleNamespace(**{**BASE, **fields})).layers[0].attention.rope


@pytest.mark.parametrize(
    ("architecture", "old", "new"),
    [
        (
            "LlamaForCausalLM",
            {"rope_theta": 5e5},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        ),
        (
            "LlamaForCausalLM",
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}},
        ),
        (
            "GPTNeoXForCausalLM",
            {"rotary_pct": 0.5, "rotary_emb_base": 1e4},
            {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "partial_rotary_factor": 0.5,
                }
            },
        ),
        (
            "Gemma3ForCausalLM",
            {
                "head_dim": 16,
                "rope_theta": 1e6,
                "rope_local_base_freq": 1e4,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "sliding_window": 8,
                "sliding_window_pattern": 2,
            },
            {
                "head_dim": 16,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                },
                "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
        ),
    ],
)
def test_old_and_new_config_formats_are_equivalent(
    spec_of: SpecOf, architecture: str, old: dict[str, Any], new: dict[str, Any]
) -> None:
    specs = [spec_of(architecture, SimpleNamespace(**{**BASE, **fields})) for fields in (old, new)]
    assert specs[0] == specs[1]


def test_every_rope_scaling_is_read(spec_of: SpecOf) -> None:
    common = {"factor": 4.0, "original_max_position_embeddings": 32}
    kinds = {
        "linear": LinearScaling(4.0),
        "dynamic": DynamicScaling(4.0, 128),
        "llama3": Llama3Scaling(4.0, 1.0, 4.0, 32),
        "yarn": YarnScaling(4.0, 32, pytest.approx(1.1386294)),
        "longrope": LongScaling((1.0,) * 8, (2.0,) * 8, 32, *[pytest.approx(1.1832159)] * 2),
    }
    extra = {
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
    }
    for kind, expected in kinds.items():
        rope = rope_of(
            spec_of, "LlamaForCausalLM", rope_scaling={"rope_type": kind, **common, **extra}
        )
        assert rope.scaling == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 65}, "expected a multiple of 4 attention heads"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads 3"),
        ({"head_dim": 15}, "rotary size: got 15; expected a positive even number"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 2.0}},
            "larger than the head size",
        ),
        ({"rope_scaling": {"rope_type": "yarm", "factor": 2.0}}, "did you mean 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "has no 'low_freq_factor'"),
        ({"vocab_size": None}, "has no 'vocab_size'"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers in config.json is 'many'"),
        ({"hidden_act": "gelu_nwe"}, "did you mean 'gelu_new'"),
    ],
)
def test_invalid_config_values_are_rejected(
    spec_of: SpecOf, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        spec_of("LlamaForCausalLM", SimpleNamespace(**{**BASE, **fields}))


WINDOWS = {"use_sliding_window": True, "sliding_window": 8}


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        ("MistralForCausalLM", {"sliding_window": "8"}, "sliding_window in config.json is '8'"),
        ("MistralForCausalLM", {"sliding_window": 0}, "sliding_window in config.json is 0"),
        (
            "Qwen2ForCausalLM",
            {**WINDOWS, "layer_types": "full"},
            "layer_types in config.json is 'full'",
        ),
        (
            "Qwen2ForCausalLM",
            {**WINDOWS, "layer_types": [[1], 2, 3, 4]},
            "layer_types in config.json must name",
        ),
        (
            "Qwen2ForCausalLM",
            {**WINDOWS, "max_window_layers": "x"},
            "max_window_layers in config.json is 'x'",
        ),
        (
            "Gemma2ForCausalLM",
            {"query_pre_attn_scalar": 0},
            "query_pre_attn_scalar in config.json is 0",
        ),
        (
            "Gemma2ForCausalLM",
            {"attn_logit_softcapping": 0},
            "attn_logit_softcapping in config.json is 0",
        ),
        (
            "Gemma3ForCausalLM",
            {"head_dim": 16, "sliding_window_pattern": "x"},
            "sliding_window_pattern",
        ),
        (
            "Qwen3MoeForCausalLM",
            {"num_experts": 4, "num_experts_per_tok": 5, "moe_intermediate_size": 8},
            "got 5; expected 1 to 4 experts",
        ),
    ],
)
def test_invalid_architecture_values_are_rejected(
    spec_of: SpecOf, architecture: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        spec_of(architecture, SimpleNamespace(**{**BASE, **fields}))


def test_windows_follow_layer_types(spec_of: SpecOf, checkpoint: Callable[[str], Path]) -> None:
    spec = spec_of("Gemma2ForCausalLM", read_config(checkpoint("Gemma2ForCausalLM")))
    assert [layer.attention.window for layer in spec.layers] == [24, None, 24]


def test_specs_are_values(spec_of: SpecOf, checkpoint: Callable[[str], Path]) -> None:
    for architecture in ("LlamaForCausalLM", "MixtralForCausalLM"):
        config = json.loads((checkpoint(architecture) / "config.json").read_text())
        first, second = (spec_of(architecture, SimpleNamespace(**config)) for _ in range(2))
        assert first == second
        assert hash(first) == hash(second)
