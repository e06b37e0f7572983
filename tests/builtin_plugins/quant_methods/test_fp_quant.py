"""FP-Quant checkpoints compute the same as their dequantized weights, with the rotation undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.fp_quant.method import FpQuant
from core.errors import ModelError
from tests.builtin_plugins.quant_methods.writers.fp_quant import CASES, config, writer
from tests.builtin_plugins.quant_methods.writers.model import (
    CheckModel,
    logprobs,
    plain_tensors,
    quantize,
)

LLAMA = "LlamaForCausalLM"


@pytest.mark.parametrize("name", CASES)
def test_model_matches_dequantized_weights(name: str, check_model: CheckModel) -> None:
    write, facts = CASES[name]
    ranks = (1, 2) if name == "nvfp4, rotations of 16" else (1,)
    check_model(write, lambda: FpQuant(facts), ranks=ranks)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"forward_dtype": "mxfp8"},
            "got forward_dtype 'mxfp8', hadamard_group_size 32; expected a dtype of mxfp4, nvfp4",
        ),
        ({"hadamard_group_size": 0}, "hadamard_group_size 0; expected"),
        (
            {"pseudoquantization": True},
            "pseudoquantization: got true; expected false",
        ),
    ],
)
def test_unsupported_config_is_rejected(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        FpQuant(config(**more))


def test_invalid_rotation_size_and_master_weights_are_rejected(tmp_path: Path) -> None:
    stored, _ = quantize(plain_tensors(LLAMA, tmp_path), writer())
    with pytest.raises(ModelError, match=r"down_proj has 96 inputs; .* multiple of group size 64"):
        logprobs(LLAMA, tmp_path, stored, FpQuant(config(size=64)))
    stored["model.layers.0.mlp.up_proj.weight"] = torch.zeros(96, 64)
    with pytest.raises(ModelError, match="has plain weights in addition to four-bit ones"):
        logprobs(LLAMA, tmp_path, stored, FpQuant(config()))
