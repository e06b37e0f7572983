"""Groups of inputs as the kernels have them, for groups as checkpoints have them."""

from __future__ import annotations

from typing import Final

import torch
from core_kernels.quantized import FILLED, LARGEST_GROUP

from core.api import ModelError

WHOLE_ROW: Final = 128
"""The group by which rows with one scale are kept: it stands there several times."""


def kept_group(group: int) -> int:
    """Return the group that the kernels take for one of a format: it, or a part of it; 0 where
    there is none.
    """
    if group <= 0:
        return WHOLE_ROW
    if group <= LARGEST_GROUP:
        return 0 if group % FILLED else group
    return next((size for size in (256, 128, 64, 32, 16, FILLED) if group % size == 0), 0)


def repeated(scales: torch.Tensor, width: int, of: int, group: int) -> torch.Tensor:
    """Return [rows, groups] of the kernels, which are parts of groups of `of` inputs; the last ones
    may have fewer.

    Raises `ModelError` for groups that are smaller.
    """
    own = -(-width // group)
    if scales.shape[1] > own:
        raise ModelError(
            f"has groups of {of} inputs, and the kernels keep {group}; use --plugins "
            "no:quant_packed."
        )
    return (
        scales
        if scales.shape[1] == own
        else scales.repeat_interleave(-(-min(of, width) // group), 1)[:, :own]
    )


def scale_type(scales: torch.Tensor) -> torch.dtype:
    """Return the type of two bytes that is nearest to these scales, where they are the first of a
    layer.
    """
    if scales.dtype in (torch.float16, torch.bfloat16):
        return scales.dtype  # those that follow are of it, too
    exact = scales.float()

    def worst(dtype: torch.dtype) -> float:
        off = (scales.to(dtype).float() - exact).abs() / exact.abs().clamp(min=1e-30)
        return float(off.max()) if off.numel() else 0.0

    # Of powers of two both are exact, and bfloat16 has all of them.
    return torch.float16 if worst(torch.float16) < worst(torch.bfloat16) else torch.bfloat16
