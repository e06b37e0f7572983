"""HQQ checkpoints compute the same as their dequantized weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.hqq.method import Hqq
from core.errors import ModelError
from tests.builtin_plugins.quant_methods.writers.hqq import (
    CASES,
    config,
    library_writer,
    settings,
    writer,
)
from tests.builtin_plugins.quant_methods.writers.model import (
    CheckModel,
    assert_close,
    is_linear,
    logprobs,
    plain_tensors,
    quantize,
)

LLAMA = "LlamaForCausalLM"


@pytest.mark.parametrize(("bits", "group", "axis"), CASES)
def test_model_matches_dequantized_weights(
    bits: int, group: int | None, axis: int, check_model: CheckModel
) -> None:
    settings = config(bits, group, axis)
    check_model(writer(bits, group, axis), lambda: Hqq(settings), ranks=(1, 2))


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "group", "axis"), CASES)
def test_library_checkpoint_is_read(
    bits: int, group: int | None, axis: int, check_model: CheckModel
) -> None:
    settings = config(bits, group, axis)
    check_model(library_writer(bits, group, axis), lambda: Hqq(settings))


def test_row_spanning_groups_are_read(check_model: CheckModel) -> None:
    """Groups of 64 in rows of 96 inputs: HQQ reshapes the flat weight."""
    check_model(writer(4, 64), lambda: Hqq(config(4, 64)))


def test_packed_bytes_stored_as_floats_are_read(check_model: CheckModel) -> None:
    check_model(writer(as_floats=True), lambda: Hqq(config()))


def test_settings_per_layer_type(tmp_path: Path) -> None:
    tensors = plain_tensors(LLAMA, tmp_path)
    eight = [name for name in tensors if name.endswith("mlp.down_proj.weight")]
    four = [name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight"))]
    stored, plain = quantize(tensors, writer(8, 32), eight.__contains__)
    stored, plain = (
        quantize(own, writer(), four.__contains__)[at] for at, own in enumerate((stored, plain))
    )
    kinds = {"self_attn.q_proj": settings(4, 16, 1), "self_attn.k_proj": settings(4, 16, 1)}
    kinds["mlp.down_proj"] = settings(8, 32, 1)
    quant = Hqq(config(quant_config=kinds))
    assert_close(logprobs(LLAMA, tmp_path, stored, quant), logprobs(LLAMA, tmp_path, plain))


def test_excluded_modules_are_plain(check_model: CheckModel) -> None:
    def which(name: str) -> bool:
        return is_linear(name) and "v_proj" not in name and "mlp.up_proj" not in name

    settings = config(skip_modules=["lm_head", "mlp.up_proj", "v_proj"])
    check_model(writer(), lambda: Hqq(settings), which=which)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_config": {}}, "quant_config: weight_quant_params is missing"),
        (
            {"quant_config": settings(5, 64, 1)},
            "5 bits with group_size 64 along axis 1.* hqq expects 1, 2, 3, 4, 8 bits",
        ),
        (
            {"quant_config": {**settings(4, 64, 1), "zero_quant_params": {"nbits": 8}}},
            "zero_quant_params: quantized scales or zero points are not supported",
        ),
    ],
)
def test_unsupported_config_is_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Hqq(config(**change))


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "W_q",
            torch.zeros(3, 16, dtype=torch.uint8),
            r"has a W_q of uint8 \[3, 16\]; expected uint8 \[192, 16\]",
        ),
        ("scale", torch.ones(5), r"has a scale of shape \[5\]; expected 384 groups"),
        ("nbits", torch.tensor(8), "up_proj.nbits is 8; the quantization config expects 4"),
        ("zero", None, "missing tensors: model.layers.0.mlp.up_proj.zero"),
    ],
)
def test_broken_checkpoint_raises_one_error(
    name: str, tensor: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    stored, _ = quantize(plain_tensors(LLAMA, tmp_path), writer())
    key = f"model.layers.0.mlp.up_proj.{name}"
    del stored[key]
    stored |= {} if tensor is None else {key: tensor}
    with pytest.raises(ModelError, match=message):
        logprobs(LLAMA, tmp_path, stored, Hqq(config()))
