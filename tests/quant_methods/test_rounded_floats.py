"""`--quantization fp8`: plain weights of any checkpoint are rounded while they load, to what
rounding them before gives.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from builtin_plugins.quant_methods.fp8.method import make_fp8
from builtin_plugins.quant_methods.fp8.rounding import DeepSpeedFp
from core.errors import ModelError
from core.testing.checkpoints import tiny_config
from tests.quant_methods.stored import (
    MODULES,
    Tensors,
    assert_alike,
    checkpoint,
    is_linear,
    on_two_ranks,
    packed,
    scores,
)

HIGHEST = 448.0


def rows(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scales = weight.abs().amax(-1, keepdim=True) / HIGHEST
    return {"weight": weight}, (weight / scales).to(torch.float8_e4m3fn).float() * scales


@pytest.mark.parametrize(
    "architecture",
    ["LlamaForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM", "Phi3ForCausalLM"],
)
def test_a_plain_checkpoint_is_rounded_alone_and_on_two_ranks(
    architecture: str, tmp_path: Path
) -> None:
    stored, plain = packed(checkpoint(architecture, tmp_path), rows)
    expected = scores(architecture, tmp_path, plain)
    assert_alike(scores(architecture, tmp_path, stored, make_fp8()), expected)
    assert_alike(on_two_ranks(architecture, tmp_path, stored, make_fp8), expected)
    assert not torch.equal(expected, scores(architecture, tmp_path, stored))


def test_all_experts_in_one_tensor_are_rounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of gpt-oss: [experts, in, out], gate and up in turn."""
    monkeypatch.setitem(MODULES, "GptOssForCausalLM", "gpt_oss:spec")
    assert tiny_config("GptOssForCausalLM").model_type == "gpt_oss"
    tensors = checkpoint("GptOssForCausalLM", tmp_path)
    plain = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            plain[name] = rows(tensor.transpose(1, 2))[1].transpose(1, 2)
        elif is_linear(name):
            plain[name] = rows(tensor)[1]
    assert any("gate_up_proj" in name for name in tensors)
    expected = scores("GptOssForCausalLM", tmp_path, plain)
    assert_alike(scores("GptOssForCausalLM", tmp_path, tensors, make_fp8()), expected)
    assert_alike(on_two_ranks("GptOssForCausalLM", tmp_path, tensors, make_fp8), expected)
    assert not torch.allclose(expected, scores("GptOssForCausalLM", tmp_path, tensors), atol=1e-3)


def test_what_deepspeed_was_to_round_is_rounded_alike(tmp_path: Path) -> None:
    tensors = checkpoint("LlamaForCausalLM", tmp_path)
    expected = scores("LlamaForCausalLM", tmp_path, tensors, make_fp8())
    for stated in (None, {"bits": 8, "group_size": 512}, {"bits": 6}):
        assert torch.equal(
            scores("LlamaForCausalLM", tmp_path, tensors, DeepSpeedFp(stated)), expected
        )
    with pytest.raises(ModelError, match="12 bits; DeepSpeed's floats have 6 or 8"):
        DeepSpeedFp({"bits": 12})


def test_a_row_of_zeros_stays_zero(tmp_path: Path) -> None:
    tensors = checkpoint("LlamaForCausalLM", tmp_path)
    tensors["model.layers.0.mlp.up_proj.weight"][5] = 0
    assert bool(scores("LlamaForCausalLM", tmp_path, tensors, make_fp8()).isfinite().all())
