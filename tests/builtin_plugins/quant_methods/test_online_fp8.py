"""`--quantization fp8`: quantizing a plain checkpoint on load equals quantizing it before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from builtin_plugins.quant_methods.fp8.method import DeepSpeedFp, make_fp8
from core.errors import ModelError
from core.testing.checkpoints import tiny_config
from tests.builtin_plugins.quant_methods.writers.model import (
    MODULES,
    Tensors,
    assert_close,
    is_linear,
    logprobs,
    logprobs_tp2,
    plain_tensors,
    quantize,
)

HIGHEST = 448.0


def rows(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scales = weight.abs().amax(-1, keepdim=True) / HIGHEST
    return {"weight": weight}, (weight / scales).to(torch.float8_e4m3fn).float() * scales


@pytest.mark.parametrize(
    "architecture",
    ["LlamaForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM", "Phi3ForCausalLM"],
)
def test_plain_checkpoint_is_quantized_on_tp1_and_tp2(architecture: str, tmp_path: Path) -> None:
    stored, plain = quantize(plain_tensors(architecture, tmp_path), rows)
    expected = logprobs(architecture, tmp_path, plain)
    assert_close(logprobs(architecture, tmp_path, stored, make_fp8()), expected)
    assert_close(logprobs_tp2(architecture, tmp_path, stored, make_fp8), expected)
    assert not torch.equal(expected, logprobs(architecture, tmp_path, stored))


def test_stacked_experts_are_quantized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gpt-oss: [experts, in, out], with interleaved gate and up rows."""
    monkeypatch.setitem(MODULES, "GptOssForCausalLM", "gpt_oss:spec")
    assert tiny_config("GptOssForCausalLM").model_type == "gpt_oss"
    tensors = plain_tensors("GptOssForCausalLM", tmp_path)
    plain = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            plain[name] = rows(tensor.transpose(1, 2))[1].transpose(1, 2)
        elif is_linear(name):
            plain[name] = rows(tensor)[1]
    assert any("gate_up_proj" in name for name in tensors)
    expected = logprobs("GptOssForCausalLM", tmp_path, plain)
    assert_close(logprobs("GptOssForCausalLM", tmp_path, tensors, make_fp8()), expected)
    assert_close(logprobs_tp2("GptOssForCausalLM", tmp_path, tensors, make_fp8), expected)
    assert not torch.allclose(expected, logprobs("GptOssForCausalLM", tmp_path, tensors), atol=1e-3)


def test_deepspeedfp_matches_fp8(tmp_path: Path) -> None:
    tensors = plain_tensors("LlamaForCausalLM", tmp_path)
    expected = logprobs("LlamaForCausalLM", tmp_path, tensors, make_fp8())
    for stated in (None, {"bits": 8, "group_size": 512}, {"bits": 6}):
        assert torch.equal(
            logprobs("LlamaForCausalLM", tmp_path, tensors, DeepSpeedFp(stated)), expected
        )
    with pytest.raises(ModelError, match="bits: got 12; expected 6 or 8"):
        DeepSpeedFp({"bits": 12})


def test_zero_row_stays_finite(tmp_path: Path) -> None:
    tensors = plain_tensors("LlamaForCausalLM", tmp_path)
    tensors["model.layers.0.mlp.up_proj.weight"][5] = 0
    assert bool(logprobs("LlamaForCausalLM", tmp_path, tensors, make_fp8()).isfinite().all())
