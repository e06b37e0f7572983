"""Writers of HQQ checkpoints for tests: packed here, and by the library."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.builtin_plugins.quant_methods.writers.model import (
    Tensors,
    Writer,
)


def settings(bits: int, group: int | None, axis: int) -> dict[str, Any]:
    weights = {
        "nbits": bits,
        "channel_wise": True,
        "group_size": group,
        "optimize": True,
        "axis": axis,
    }
    return {"weight_quant_params": weights, "scale_quant_params": None, "zero_quant_params": None}


def config(bits: int = 4, group: int | None = 16, axis: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "hqq",
        "quant_config": settings(bits, group, axis),
        "skip_modules": ["lm_head"],
        **more,
    }


def writer(
    bits: int = 4, group: int | None = 16, axis: int = 1, *, as_floats: bool = False
) -> Writer:
    """Groups are rows or columns of a reshaped weight; its parts share the bits of an element."""

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        size = group or weight.shape[1 - (axis == 0)]
        lines = weight.reshape(-1, size) if axis == 1 else weight.reshape(size, -1)
        low = lines.amin(axis, keepdim=True)
        high = lines.amax(axis, keepdim=True)
        scales = ((high - low) / (2**bits - 1)).half()
        zeros = (-low / scales.float()).half()
        codes = (lines / scales.float() + zeros.float()).round().clamp(0, 2**bits - 1)
        plain = ((codes - zeros.float()) * scales.float()).view(weight.shape)
        per = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}[bits]
        filled = torch.nn.functional.pad(codes.int(), (0, 0, 0, -len(codes) % per))
        stored = torch.zeros(len(filled) // per, filled.shape[1], dtype=torch.int32)
        for index, part in enumerate(filled.chunk(per)):
            stored |= part << bits * (per - 1 - index)
        stored = stored if bits == 3 else stored.to(torch.uint8)
        stated = {
            "nbits": torch.tensor(bits),
            "group_size": torch.tensor(size),
            "axis": torch.tensor(axis),
        }
        stated |= {
            "shape": torch.tensor(weight.shape),
            "packing": torch.tensor([52], dtype=torch.uint8),
        }
        stored = stored.view(torch.float16) if as_floats else stored
        return {"W_q": stored, "scale": scales, "zero": zeros, **stated}, plain

    return write


def library_writer(bits: int, group: int | None, axis: int) -> Writer:
    quantize = pytest.importorskip("hqq.core.quantize")

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        linear.weight.data = weight.clone()
        facts = quantize.BaseQuantizeConfig(nbits=bits, group_size=group, axis=axis)
        made = quantize.HQQLinear(linear, facts, compute_dtype=torch.float32, device="cpu")
        return {
            name: own.data for name, own in made.state_dict().items()
        }, made.dequantize().float()

    return write


CASES = [
    (4, 16, 1),
    (8, None, 1),
    (3, 16, 1),
    (2, 16, 1),
    (1, 8, 1),
    (4, 16, 0),
    (3, 64, 0),
    (8, None, 0),
]
