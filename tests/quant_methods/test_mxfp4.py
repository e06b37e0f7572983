"""Experts of gpt-oss checkpoints, as their bytes are stored: what transformers unpacks, multiplied
by the C++ kernels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from core_kernels.library import load_library
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from builtin_plugins.quant_methods.mxfp4.experts import Mxfp4
from builtin_plugins.quant_methods.packed.method import make_method
from core.errors import ModelError
from tests.quant_methods.stored import Tensors, assert_alike, checkpoint, on_two_ranks, scores

GPT_OSS = "GptOssForCausalLM"


def packed(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Return a checkpoint with experts of four bits, and a plain one with what those stand for."""
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


@pytest.mark.skipif(load_library() is None, reason="no C++ library on this machine")
def test_the_kernels_multiply_by_what_transformers_unpacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored, plain = packed(checkpoint(GPT_OSS, tmp_path))
    expected = scores(GPT_OSS, tmp_path, plain)
    assert_alike(scores(GPT_OSS, tmp_path, stored, method(), plain=make_method()), expected)
    assert "no kernel of this device" not in caplog.text
    assert_alike(scores(GPT_OSS, tmp_path, stored, method()), expected)
    assert "mxfp4: no kernel of this device multiplies by" in caplog.text


def test_two_ranks_give_what_one_gives(tmp_path: Path) -> None:
    stored, plain = packed(checkpoint(GPT_OSS, tmp_path, intermediate_size=64))
    assert_alike(on_two_ranks(GPT_OSS, tmp_path, stored, method), scores(GPT_OSS, tmp_path, plain))


def test_numbers_without_their_scales_are_refused(tmp_path: Path) -> None:
    stored, _ = packed(checkpoint(GPT_OSS, tmp_path))
    alone = {
        name: tensor for name, tensor in stored.items() if not name.endswith("down_proj_scales")
    }
    with pytest.raises(ModelError, match=r"down.* came alone|down_proj_scales"):
        scores(GPT_OSS, tmp_path, alone, method())
