"""Writers of fp8, fbgemm_fp8 and modelopt checkpoints for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from builtin_plugins.quant_methods.fp8.method import FbgemmFp8, Fp8
from builtin_plugins.quant_methods.modelopt.method import ModelOpt
from builtin_plugins.quant_methods.stored.method import StoredMethod
from tests.builtin_plugins.quant_methods.writers.model import (
    Tensors,
    Writer,
)

HIGHEST = 448.0
"""Largest float8_e4m3fn."""


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def spread(scales: torch.Tensor, rows: int, columns: int, shape: torch.Size) -> torch.Tensor:
    return scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[: shape[0], : shape[1]]


def eight_bits(rows: int, columns: int, scale: str = "weight_scale", view: str = "") -> Writer:
    """Write one scale per `rows` x `columns` block; 0: all."""

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        high = rows or weight.shape[0]
        wide = columns or weight.shape[1]
        down = -(-weight.shape[0] // high)
        across = -(-weight.shape[1] // wide)
        scales = torch.empty(down, across)
        for i in range(down):
            for j in range(across):
                scales[i, j] = (
                    weight[i * high : (i + 1) * high, j * wide : (j + 1) * wide].abs().max()
                    / HIGHEST
                )
        if view == "exponents":
            scales = torch.exp2(scales.log2().ceil())
        whole = spread(scales, high, wide, weight.shape)
        values = (weight / whole).clamp(-HIGHEST, HIGHEST).to(torch.float8_e4m3fn)
        stored = {
            "": lambda: scales,
            "scalar": lambda: scales.reshape(()),
            "flat": lambda: scales.reshape(-1),
            "four axes": lambda: scales[:, None, :, None].contiguous(),
            "exponents": lambda: scales.to(torch.float8_e8m0fnu),
        }[view]()
        return {"weight": values, scale: stored}, values.float() * whole

    return write


def four_bits(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Two floats per byte, eight-bit scales of 16 numbers, and a tensor scale."""
    groups = weight.view(len(weight), -1, 16)
    whole = weight.abs().max() / (6.0 * HIGHEST)
    scales = (groups.abs().amax(2) / 6.0 / whole).to(torch.float8_e4m3fn)
    own = (scales.float() * whole).unsqueeze(-1)
    codes = ((groups / own).abs().unsqueeze(-1) - E2M1).abs().argmin(-1)
    plain = E2M1[codes] * groups.sign() * own
    codes = (codes + 8 * (groups < 0)).view(weight.shape)
    stored = (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8)
    return {"weight": stored, "weight_scale": scales, "weight_scale_2": whole}, plain.view(
        weight.shape
    )


def fp8(**more: Any) -> Fp8:
    return Fp8({"quant_method": "fp8", "activation_scheme": "dynamic", **more})


def modelopt(algorithm: str, **more: Any) -> ModelOpt:
    return ModelOpt(
        {
            "quant_method": "modelopt",
            "quant_algo": algorithm,
            "exclude_modules": ["lm_head"],
            **more,
        }
    )


Case = tuple[Writer, Callable[[], StoredMethod]]


CASES: dict[str, Case] = {
    "fp8 of tensors": (eight_bits(0, 0, view="scalar"), fp8),
    "fp8 of tensors, as transformers names scales": (eight_bits(0, 0, "weight_scale_inv"), fp8),
    "fp8 in blocks": (
        eight_bits(16, 16, "weight_scale_inv"),
        lambda: fp8(weight_block_size=[16, 16]),
    ),
    "fp8 in blocks that end early": (
        eight_bits(48, 16, "weight_scale_inv"),
        lambda: fp8(weight_block_size=[48, 16]),
    ),
    "fp8 in blocks, exponents": (
        eight_bits(16, 32, "weight_scale_inv", "exponents"),
        lambda: fp8(weight_block_size=[16, 32]),
    ),
    "fbgemm_fp8": (eight_bits(1, 0), lambda: FbgemmFp8({"quant_method": "fbgemm_fp8"})),
    "modelopt FP8": (eight_bits(0, 0, view="scalar"), lambda: modelopt("FP8")),
    "modelopt FP8 in rows": (
        eight_bits(1, 0, view="flat"),
        lambda: modelopt("FP8_PER_CHANNEL_PER_TOKEN"),
    ),
    "modelopt FP8 in blocks": (
        eight_bits(128, 128, view="four axes"),
        lambda: modelopt("FP8_PB_WO"),
    ),
    "modelopt NVFP4": (four_bits, lambda: modelopt("NVFP4")),
}
