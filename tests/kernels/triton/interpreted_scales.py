"""Scales of `tl.dot_scaled` in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter


def read_e4m3_scales(patch: pytest.MonkeyPatch) -> None:
    """Let the interpreter read e4m3 scales as devices do: it takes all for exponents (E8M0)."""
    exponents: Any = interpreter._dot_scaled_scale_to_f32

    def to_float(handle: Any, compute_type: Any) -> Any:
        if handle.dtype != tl.float8e4nv:
            return exponents(handle, compute_type)
        raw = torch.from_numpy(handle.data.view(np.uint8).copy())
        return raw.view(torch.float8_e4m3fn).float().numpy()

    patch.setattr(interpreter, "_dot_scaled_scale_to_f32", to_float)
