"""FP-Quant checkpoints give what their numbers stand for once the rotation of inputs is taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.fp_quant.method import FpQuant
from core.errors import ModelError
from tests.quant_methods.stored import (
    Tensors,
    Writer,
    assert_alike,
    checkpoint,
    on_two_ranks,
    packed,
    scores,
)
from tests.quant_methods.test_floats import E2M1

LLAMA = "LlamaForCausalLM"


def config(kind: str = "mxfp4", size: int = 32, **more: Any) -> dict[str, Any]:
    facts = {"quant_method": "fp_quant", "forward_dtype": kind, "hadamard_group_size": size}
    return {**facts, "modules_to_not_convert": ["lm_head"], **more}


def rotation(size: int) -> torch.Tensor:
    """Return a Hadamard matrix with some rows turned around, so that it is not its own transpose."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return (
        matrix * torch.where(torch.arange(size) % 3 == 1, -1, 1)[:, None] * size**-0.5
    ).bfloat16()


def writer(kind: str = "mxfp4", size: int = 32) -> Writer:
    """Rotate inputs, round to four bits, two numbers in a byte, scales as bytes."""

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        own = rotation(size).float()
        turned = (weight.view(len(weight), -1, size) @ own).view(weight.shape)
        group, whole = (32, 3.0) if kind == "mxfp4" else (16, 10.0)
        groups = turned.view(len(weight), -1, group) * whole
        scales = groups.abs().amax(2) / 6.0
        scales = (
            scales.log2().ceil().exp2()
            if kind == "mxfp4"
            else scales.to(torch.float8_e4m3fn).float()
        )
        codes = ((groups / scales.unsqueeze(-1)).abs().unsqueeze(-1) - E2M1).abs().argmin(-1)
        plain = (E2M1[codes] * groups.sign() * scales.unsqueeze(-1) / whole).view(
            len(weight), -1, size
        ) @ own.T
        codes = (codes + 8 * (groups < 0)).view(weight.shape)
        stored = (
            (scales.log2() + 127).to(torch.uint8)
            if kind == "mxfp4"
            else scales.to(torch.float8_e4m3fn)
        )
        tensors = {
            "qweight": (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8),
            "scales": stored.view(torch.uint8),
            "weight_global_scale": torch.tensor([whole], dtype=torch.bfloat16),
            "act_global_scale": torch.tensor([whole], dtype=torch.bfloat16),
            "forward_hadamard_matrix": rotation(size),
            "backward_hadamard_matrix": rotation(size),
        }
        return tensors, plain.view(weight.shape)

    return write


CASES: dict[str, tuple[Writer, dict[str, Any]]] = {
    "mxfp4": (writer(), config()),
    "nvfp4": (writer("nvfp4"), config("nvfp4")),
    "nvfp4, rotations of 16": (writer("nvfp4", 16), config("nvfp4", 16)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_model_computes_what_its_numbers_stand_for(name: str, tmp_path: Path) -> None:
    write, facts = CASES[name]
    stored, plain = packed(checkpoint(LLAMA, tmp_path), write)
    expected = scores(LLAMA, tmp_path, plain)
    assert_alike(scores(LLAMA, tmp_path, stored, FpQuant(facts)), expected)
    if name == "nvfp4, rotations of 16":
        assert_alike(on_two_ranks(LLAMA, tmp_path, stored, lambda: FpQuant(facts)), expected)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"forward_dtype": "mxfp8"},
            "forward_dtype is 'mxfp8', hadamard_group_size 32; read are mxfp4, nvfp4",
        ),
        ({"hadamard_group_size": 0}, "hadamard_group_size 0; read are"),
        (
            {"pseudoquantization": True},
            "pseudoquantization is set, so weights are not stored in four bits",
        ),
    ],
)
def test_what_is_not_read_is_refused_by_name(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        FpQuant(config(**more))


def test_rotations_that_do_not_divide_and_master_weights_are_refused(tmp_path: Path) -> None:
    stored, _ = packed(checkpoint(LLAMA, tmp_path), writer())
    with pytest.raises(
        ModelError, match=r"down_proj has 96 inputs, which do not divide into groups of 64"
    ):
        scores(LLAMA, tmp_path, stored, FpQuant(config(size=64)))
    stored["model.layers.0.mlp.up_proj.weight"] = torch.zeros(96, 64)
    with pytest.raises(ModelError, match="has plain numbers beside those of four bits"):
        scores(LLAMA, tmp_path, stored, FpQuant(config()))
