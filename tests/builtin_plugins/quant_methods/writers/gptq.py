"""Writer of GPTQ checkpoints for tests."""

from __future__ import annotations

from typing import Any

import torch

from tests.builtin_plugins.quant_methods.writers.model import (
    Tensors,
    Writer,
    pack_words,
    round_weight,
)


def config(
    bits: int = 4, group: int = 16, *, sym: bool = True, order: bool = False, **more: Any
) -> dict[str, Any]:
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "sym": sym,
        "desc_act": order,
        **more,
    }


def writer(
    bits: int = 4,
    group: int = 16,
    *,
    sym: bool = True,
    order: bool = False,
    zero_point_offset: int = 1,
) -> Writer:
    """Packed along the inputs, zero points along the outputs, minus an offset in version 1."""

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        width = weight.shape[1]
        size = width if group == -1 else group
        which = torch.arange(width) // size
        if order:
            which = which[torch.randperm(width, generator=torch.Generator().manual_seed(width))]
        codes, scales, zeros, plain = round_weight(weight, bits, group, symmetric=sym, order=which)
        tensors = {
            "qweight": pack_words(codes, bits).T.contiguous(),
            "qzeros": pack_words((zeros - zero_point_offset).T, bits),
            "scales": scales.T.contiguous(),
            "g_idx": which.to(torch.int32),
        }
        return tensors, plain

    return write
