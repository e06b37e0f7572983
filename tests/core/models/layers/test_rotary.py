"""Every rotary variant has transformers' frequencies."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Qwen2VLTextConfig, Qwen3VLTextConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

from core.api import ModelError
from core.model_spec.facts import ModelFacts
from core.model_spec.rope import RopeSpec
from core.models.layers.positions import Rotary, cos_sin_table, inverse_frequencies
from core.models.ops import reference

COMMON = {"rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
VARIANTS: dict[str, dict[str, Any]] = {
    "linear": {"rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_theta": 10000.0, "factor": 4.0},
    "llama3": {**COMMON, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {**COMMON, "beta_fast": 16.0, "beta_slow": 2.0},
    "proportional": {"rope_theta": 10000.0, "factor": 4.0, "partial_rotary_factor": 0.25},
    "longrope": {**COMMON, "short_factor": [1.1] * 8, "long_factor": [2.0 + i for i in range(8)]},
}


def config_of(kind: str) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=256,
        rope_parameters={"rope_type": kind, **VARIANTS[kind]},
    )


@pytest.mark.parametrize("kind", VARIANTS)
@pytest.mark.parametrize("served", [48, 256, 512])
def test_rotary_frequencies_equal_transformers(kind: str, served: int) -> None:
    config = config_of(kind)
    expected, factor = ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=served)
    found, found_factor = inverse_frequencies(ModelFacts(config).rope(16), served)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    assert found_factor == pytest.approx(factor)


@pytest.mark.parametrize(
    ("older", "kind", "more"),
    [("su", "longrope", {}), ("mrope", "default", {"mrope_section": [2, 3, 3]})],
)
def test_old_rope_config_forms_are_equivalent(older: str, kind: str, more: dict[str, Any]) -> None:
    fields = VARIANTS.get(kind, {"rope_theta": 10000.0})
    config = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 256}
    one, other = (
        ModelFacts(
            SimpleNamespace(**config, rope_parameters={"rope_type": name, **fields, **given})
        ).rope(16)
        for name, given in ((older, more), (kind, {}))
    )
    assert replace(one, sections=()) == other
    assert one.sections == tuple(more.get("mrope_section", ()))


def test_rotary_table_holds_cosines_then_sines() -> None:
    table = cos_sin_table(RopeSpec(size=4, theta=100.0), 3)
    angles = torch.tensor([[0.0, 0.0], [1.0, 0.1], [2.0, 0.2]])
    torch.testing.assert_close(table, torch.cat((angles.cos(), angles.sin()), -1))


def test_learned_factors_change_the_frequencies() -> None:
    logarithms = torch.tensor([0.5, -1.0])
    table = cos_sin_table(RopeSpec(size=4, theta=100.0, learned=True), 3, logarithms)
    angles = torch.arange(3)[:, None] * torch.tensor([1.0, 0.1]) * logarithms.exp()
    torch.testing.assert_close(table, torch.cat((angles.cos(), angles.sin()), -1))


SECTIONED = {
    "consecutive": (Qwen2VLTextConfig, Qwen2VLRotaryEmbedding, [2, 3, 3], False),
    "interleaved": (Qwen3VLTextConfig, Qwen3VLTextRotaryEmbedding, [4, 2, 2], True),
    "uneven": (Qwen3VLTextConfig, Qwen3VLTextRotaryEmbedding, [2, 3, 3], True),
}


def rotary_of(spec: RopeSpec, max_positions: int) -> Rotary:
    context: Any = SimpleNamespace(device="cpu", ops=SimpleNamespace(rotary=reference.rotary))
    rotary = Rotary(spec, max_positions, context)
    rotary.finish()
    return rotary


@pytest.mark.parametrize("kind", SECTIONED)
def test_sections_rotate_by_their_axis_as_in_transformers(kind: str) -> None:
    config_class, rotary_class, sections, interleaved = SECTIONED[kind]
    parameters = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": sections}
    config = config_class(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=16,
        rope_parameters={**parameters, "mrope_interleaved": interleaved},
    )
    spec = ModelFacts(config).rope(16)
    positions = torch.randint(0, 300, (3, 9), generator=torch.Generator().manual_seed(0))
    rotary = rotary_of(spec, 32)
    rotary.begin_step(positions)
    cos, sin = rotary_class(config)(torch.zeros(1), positions[:, None])
    expected = torch.cat((cos[0, :, :8], sin[0, :, :8]), -1)
    torch.testing.assert_close(rotary.step_cos_sin, expected)


def test_equal_axes_rotate_as_one_position() -> None:
    rotary = rotary_of(RopeSpec(size=16, sections=(2, 3, 3)), 32)
    query, key = torch.randn(2, 5, 2, 16, generator=torch.Generator().manual_seed(0)).unbind()
    positions = torch.tensor([3, 4, 5, 9, 31])
    expected = rotary(query.clone(), key.clone(), positions)
    rotary.begin_step(positions.expand(3, -1))
    found = rotary(query.clone(), key.clone(), torch.zeros(5, dtype=torch.int64))
    torch.testing.assert_close(found, expected)
    rotary.begin_step(None)
    torch.testing.assert_close(rotary(query.clone(), key.clone(), positions), expected)


@pytest.mark.parametrize("sections", [(2, 3), (2, 3, 4), ("8",)])
def test_sections_must_cover_all_pairs(sections: Any) -> None:
    with pytest.raises(ModelError, match="mrope_section"):
        RopeSpec(size=16, sections=sections)
