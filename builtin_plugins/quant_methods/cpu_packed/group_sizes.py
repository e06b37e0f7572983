"""Maps checkpoint group sizes to kernel group sizes."""

from __future__ import annotations

from typing import Final

import torch
from core_kernels.quantized import LARGEST_GROUP, WIDTH_MULTIPLE

from core.api import ModelError

WHOLE_ROW: Final = 128
"""Kernel group size of rows with one scale, which is repeated per group."""


def kernel_group_size(group: int) -> int:
    """Return the kernel group size for a format's: the same, or a divisor; 0: there is none."""
    if group <= 0:
        return WHOLE_ROW
    if group <= LARGEST_GROUP:
        return 0 if group % WIDTH_MULTIPLE else group
    return next((size for size in (256, 128, 64, 32, 16, WIDTH_MULTIPLE) if group % size == 0), 0)


def repeat_scales(scales: torch.Tensor, width: int, of: int, group: int) -> torch.Tensor:
    """Return scales [rows, groups] of kernel groups, which divide groups of `of` inputs.

    The last group may be smaller. Raises `ModelError` for groups smaller than the kernel's.
    """
    own = -(-width // group)
    if scales.shape[1] > own:
        raise ModelError(
            f"has group size {of}; the kernels expect {group}. Use --plugins no:quant_cpu_packed."
        )
    if scales.shape[1] == own:
        return scales
    return scales.repeat_interleave(-(-min(of, width) // group), 1)[:, :own]


def scale_type(scales: torch.Tensor) -> torch.dtype:
    """Return the 16-bit dtype closest to these scales, the first of a layer."""
    if scales.dtype in (torch.float16, torch.bfloat16):
        return scales.dtype  # later rows have the same dtype
    exact = scales.float()

    def worst(dtype: torch.dtype) -> float:
        off = (scales.to(dtype).float() - exact).abs() / exact.abs().clamp(min=1e-30)
        return float(off.max()) if off.numel() else 0.0

    # Both are exact for powers of two; bfloat16 has the wider range.
    return torch.float16 if worst(torch.float16) < worst(torch.bfloat16) else torch.bfloat16
