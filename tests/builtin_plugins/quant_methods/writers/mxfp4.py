"""Writer of MXFP4 experts for tests."""

from __future__ import annotations

from typing import Any

import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from builtin_plugins.quant_methods.mxfp4.experts import Mxfp4
from tests.builtin_plugins.quant_methods.writers.model import (
    Tensors,
)

GPT_OSS = "GptOssForCausalLM"


def quantize(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Return a checkpoint with four-bit experts, and a plain one with their dequantized weights."""
    stored = dict(tensors)
    plain = dict(tensors)
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors[name].shape
        blocks = torch.randint(
            0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=generator
        )
        scales = torch.randint(121, 124, blocks.shape[:3], dtype=torch.uint8, generator=generator)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        del stored[name]
        plain[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
    return stored, plain


def method() -> Any:
    return Mxfp4({"quant_method": "mxfp4"})
