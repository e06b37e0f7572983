"""Names of dtypes."""

from __future__ import annotations

import torch


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in configurations and checkpoints: "bfloat16"."""
    return str(dtype).removeprefix("torch.")
