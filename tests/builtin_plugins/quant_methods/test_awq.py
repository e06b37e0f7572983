"""AWQ checkpoints compute the same as their dequantized weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.quant_methods.awq.method import Awq
from core.errors import ModelError
from tests.builtin_plugins.quant_methods.writers.awq import config, writer
from tests.builtin_plugins.quant_methods.writers.model import (
    CheckModel,
    is_linear,
    logprobs,
    plain_tensors,
    quantize,
)

LLAMA = "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("architecture", "group"),
    [
        (LLAMA, -1),
        ("Qwen3MoeForCausalLM", 16),
        ("DeepseekV3ForCausalLM", 8),
        ("Gemma3ForCausalLM", 32),
        ("MixtralForCausalLM", 32),
        ("Phi3ForCausalLM", 16),
    ],
)
def test_model_matches_dequantized_weights(
    architecture: str, group: int, check_model: CheckModel
) -> None:
    check_model(writer(group), lambda: Awq(config(group)), architecture)


def test_tp2_matches_tp1_with_excluded_modules(check_model: CheckModel) -> None:
    def which(name: str) -> bool:
        return is_linear(name) and "layers.1.mlp" not in name and "k_proj" not in name

    settings = config(modules_to_not_convert=["layers.1.mlp", "k_proj"])
    check_model(writer(), lambda: Awq(settings), which=which, ranks=(2,))


def test_legacy_config_fields_are_read(check_model: CheckModel) -> None:
    facts = {"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "version": "GEMM"}
    check_model(writer(32), lambda: Awq(facts))


@pytest.mark.parametrize("change", [{"bits": 3}, {"version": "gemv"}, {"group_size": None}])
def test_unsupported_version_is_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"awq expects 4 bits, group_size .* version gemm"):
        Awq({**config(), **change})


def test_missing_scale_is_reported(tmp_path: Path) -> None:
    stored, _ = quantize(plain_tensors(LLAMA, tmp_path), writer())
    del stored["model.layers.0.self_attn.o_proj.scales"]
    with pytest.raises(
        ModelError, match=r"missing tensors: model.layers.0.self_attn.o_proj.scales"
    ):
        logprobs(LLAMA, tmp_path, stored, Awq(config()))
