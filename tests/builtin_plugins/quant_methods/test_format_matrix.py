"""Every format on every architecture type matches its dequantized weights on TP 1 and 2."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builtin_plugins.quant_methods.writers.all_formats import cases
from tests.builtin_plugins.quant_methods.writers.model import (
    CheckModel,
)

WIDE = {"hidden_size": 128, "intermediate_size": 128}
LATENT = {"q_lora_rank": 64, "kv_lora_rank": 64, "v_head_dim": 32}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {**WIDE, "head_dim": 32},
    "Qwen3MoeForCausalLM": {**WIDE, "head_dim": 32, "moe_intermediate_size": 64},
    "Gemma3ForCausalLM": {**WIDE, "head_dim": 32},
    "DeepseekV3ForCausalLM": {**WIDE, **LATENT, "moe_intermediate_size": 64},
    "MixtralForCausalLM": {**WIDE, "head_dim": 32},
}
"""Sizes that give two ranks whole groups of 32."""


@pytest.mark.slow
@pytest.mark.parametrize("name", cases())
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tp1_and_tp2_match_dequantized_weights(
    architecture: str, name: str, check_model: CheckModel
) -> None:
    write, quant = cases()[name]
    check_model(write, quant, architecture, ranks=(1, 2), **ARCHITECTURES[architecture])
