"""Writer of FP-Quant checkpoints for tests."""

from __future__ import annotations

from typing import Any

import torch

from tests.builtin_plugins.quant_methods.writers.float_formats import E2M1
from tests.builtin_plugins.quant_methods.writers.model import (
    Tensors,
    Writer,
)


def config(kind: str = "mxfp4", size: int = 32, **more: Any) -> dict[str, Any]:
    facts = {"quant_method": "fp_quant", "forward_dtype": kind, "hadamard_group_size": size}
    return {**facts, "modules_to_not_convert": ["lm_head"], **more}


def rotation(size: int) -> torch.Tensor:
    """Return a Hadamard matrix with some negated rows, so that it differs from its transpose."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return (
        matrix * torch.where(torch.arange(size) % 3 == 1, -1, 1)[:, None] * size**-0.5
    ).bfloat16()


def writer(kind: str = "mxfp4", size: int = 32) -> Writer:
    """Rotate inputs, round to four bits, two numbers per byte, scales as bytes."""

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
