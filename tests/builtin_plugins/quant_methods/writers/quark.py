"""Writers of AMD Quark checkpoints for tests."""

from __future__ import annotations

from typing import Any

import torch

from tests.builtin_plugins.quant_methods.writers.float_formats import E2M1, eight_bits
from tests.builtin_plugins.quant_methods.writers.model import (
    Tensors,
    Writer,
)


def weights(dtype: str, scheme: str, **more: Any) -> dict[str, Any]:
    return {
        "weight": {
            "dtype": dtype,
            "qscheme": scheme,
            "symmetric": True,
            "is_dynamic": False,
            **more,
        }
    }


def config(facts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"quant_method": "quark", "global_quant_config": facts, "exclude": ["lm_head"], **more}


def integers(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scales = weight.abs().amax(1) / 127
    codes = (weight / scales[:, None]).round().to(torch.int8)
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales[:, None]


def four_bits(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Two floats per byte, with an exponent per 32 of them."""
    groups = weight.view(len(weight), -1, 32)
    exponents = (groups.abs().amax(2, keepdim=True) / 6.0).log2().ceil()
    codes = ((groups / exponents.exp2()).abs().unsqueeze(-1) - E2M1).abs().argmin(-1)
    plain = E2M1[codes] * groups.sign() * exponents.exp2()
    codes = (codes + 8 * (groups < 0)).view(weight.shape)
    stored = (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8)
    return {
        "weight": stored,
        "weight_scale": (exponents[..., 0] + 127).to(torch.uint8),
    }, plain.view(weight.shape)


def six_bits(exponent_bits: int) -> Writer:
    """Four floats in three bytes, lowest bits first, with an exponent per 32 of them."""
    fractions = 5 - exponent_bits
    bias = (1 << (exponent_bits - 1)) - 1
    codes = torch.arange(32)
    exponent = codes >> fractions
    fraction = (codes & ((1 << fractions) - 1)) / (1 << fractions)
    values = torch.where(
        exponent > 0, (1 + fraction) * 2.0 ** (exponent - bias), fraction * 2.0 ** (1 - bias)
    )

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        groups = weight.view(len(weight), -1, 32)
        exponents = (groups.abs().amax(2, keepdim=True) / values[-1]).log2().ceil()
        chosen = ((groups / exponents.exp2()).abs().unsqueeze(-1) - values).abs().argmin(-1)
        plain = values[chosen] * groups.sign() * exponents.exp2()
        fours = (chosen + 32 * (groups < 0)).view(len(weight), -1, 4)
        word = fours[..., 0] | fours[..., 1] << 6 | fours[..., 2] << 12 | fours[..., 3] << 18
        stored = (
            torch.stack([word & 255, word >> 8 & 255, word >> 16], -1).to(torch.uint8).flatten(1)
        )
        scales = (exponents[..., 0] + 127).to(torch.uint8)
        return {"weight": stored, "weight_scale": scales}, plain.view(weight.shape)

    return write


CASES: dict[str, tuple[Writer, dict[str, Any]]] = {
    "fp8 of tensors": (eight_bits(0, 0, view="scalar"), weights("fp8_e4m3", "per_tensor")),
    "fp8 of rows": (eight_bits(1, 0, view="flat"), weights("fp8_e4m3", "per_channel")),
    "int8 of rows": (integers, weights("int8", "per_channel")),
    "mxfp4": (four_bits, weights("fp4", "per_group", group_size=32)),
    "mxfp6 of 2 bits of exponent": (six_bits(2), weights("fp6_e2m3", "per_group", group_size=32)),
    "mxfp6 of 3 bits of exponent": (six_bits(3), weights("fp6_e3m2", "per_group", group_size=32)),
}
