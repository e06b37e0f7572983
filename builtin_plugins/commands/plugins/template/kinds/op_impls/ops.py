"""Implementations of ops.

Each has the signature and semantics of its namesake in `core.models.ops.reference`.
"""

from __future__ import annotations

import torch


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0
) -> torch.Tensor:
    """Return x / rms(x) * (weight + offset) over the last dimension."""
    scale = weight.float() + offset
    normed = torch.nn.functional.rms_norm(x.float(), (x.shape[-1],), scale, eps)  # [..., hidden]
    return normed.to(x.dtype)
