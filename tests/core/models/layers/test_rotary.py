"""Every rotary variant has transformers' frequencies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from core.model_spec.facts import ModelFacts
from core.model_spec.rope import RopeSpec
from core.models.layers.positions import cos_sin_table, inverse_frequencies

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
    # A token of a text is as far on in each of the sections, so they turn as one.
    one, other = (
        ModelFacts(
            SimpleNamespace(**config, rope_parameters={"rope_type": name, **fields, **given})
        ).rope(16)
        for name, given in ((older, more), (kind, {}))
    )
    assert one == other


def test_rotary_table_holds_cosines_then_sines() -> None:
    table = cos_sin_table(RopeSpec(size=4, theta=100.0), 3)
    angles = torch.tensor([[0.0, 0.0], [1.0, 0.1], [2.0, 0.2]])
    torch.testing.assert_close(table, torch.cat((angles.cos(), angles.sin()), -1))
