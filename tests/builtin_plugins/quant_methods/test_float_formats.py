"""fp8, fbgemm_fp8 and modelopt checkpoints compute the same as their dequantized weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from builtin_plugins.quant_methods.stored.method import StoredMethod
from core.errors import ModelError
from tests.builtin_plugins.quant_methods.writers.float_formats import (
    CASES,
    eight_bits,
    four_bits,
    fp8,
    modelopt,
)
from tests.builtin_plugins.quant_methods.writers.model import (
    CheckModel,
    assert_close,
    is_linear,
    logprobs,
    plain_tensors,
    quantize,
)

LLAMA = "LlamaForCausalLM"


@pytest.mark.parametrize("name", CASES)
def test_model_matches_dequantized_weights(name: str, check_model: CheckModel) -> None:
    check_model(*CASES[name])


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("DeepseekV3ForCausalLM", "fp8 in blocks that end early"),
        ("Qwen3MoeForCausalLM", "fp8 in blocks"),
        ("Qwen3MoeForCausalLM", "modelopt NVFP4"),
        ("MixtralForCausalLM", "fbgemm_fp8"),
        ("Gemma3ForCausalLM", "modelopt FP8"),
        ("Phi3ForCausalLM", "fp8 in blocks"),
    ],
)
def test_moe_mla_and_fused_architectures_match(
    architecture: str, name: str, check_model: CheckModel
) -> None:
    check_model(*CASES[name], architecture)


@pytest.mark.parametrize(
    "name", ["fp8 of tensors", "fp8 in blocks", "modelopt NVFP4", "fbgemm_fp8"]
)
def test_tp2_matches_tp1(name: str, check_model: CheckModel) -> None:
    check_model(*CASES[name], ranks=(2,))


@pytest.mark.parametrize(
    "quant",
    [
        lambda: fp8(
            ignored_layers=["model.layers.0.self_attn.k_proj", "model.layers.1", "up_proj"]
        ),
        lambda: fp8(
            modules_to_not_convert=["model.layers.0.self_attn.k_proj", "model.layers.1", "up_proj"]
        ),
        lambda: modelopt(
            "FP8",
            exclude_modules=[
                "lm_head",
                "model.layers.0.self_attn.k_*",
                "model.layers.1.*",
                "*up_proj",
            ],
        ),
    ],
)
def test_excluded_modules_are_plain(
    quant: Callable[[], StoredMethod], check_model: CheckModel
) -> None:
    def which(name: str) -> bool:
        others = ("layers.0.self_attn.k_proj", "layers.1.", "up_proj")
        return is_linear(name) and not any(other in name for other in others)

    check_model(eight_bits(0, 0), quant, which=which)


def test_mixed_precision_per_layer(tmp_path: Path) -> None:
    tensors = plain_tensors(LLAMA, tmp_path)
    small = [name for name in tensors if is_linear(name) and ".mlp." in name]
    large = [name for name in tensors if name.endswith("q_proj.weight")]
    stored, plain = quantize(tensors, four_bits, small.__contains__)
    write = eight_bits(0, 0)
    stored = quantize(stored, write, large.__contains__)[0]
    plain = quantize(plain, write, large.__contains__)[1]
    layers = {
        name.removesuffix(".weight"): {"quant_algo": "NVFP4" if name in small else "FP8"}
        for name in small + large
    }
    quant = modelopt("MIXED_PRECISION", quantized_layers=layers)
    assert_close(logprobs(LLAMA, tmp_path, stored, quant), logprobs(LLAMA, tmp_path, plain))


def test_head_may_be_quantized(check_model: CheckModel) -> None:
    def which(name: str) -> bool:
        return is_linear(name) or name == "lm_head.weight"

    check_model(four_bits, lambda: modelopt("NVFP4", exclude_modules=[]), which=which)


def test_unknown_algorithm_and_block_size_are_rejected() -> None:
    with pytest.raises(
        ModelError, match=r"quant_algo: got 'W4A8_AWQ'; expected one of FP8, .*NVFP4"
    ):
        modelopt("W4A8_AWQ")
    with pytest.raises(ModelError, match=r"weight_block_size: got \[128, 0\]; expected two sizes"):
        fp8(weight_block_size=[128, 0])


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "weight",
            torch.zeros(96, 64),
            "up_proj.* has a weight of float32; expected an FP8 dtype",
        ),
        (
            "weight",
            torch.zeros(95, 64).to(torch.float8_e4m3fn),
            r"up_proj.weight: expected \[96, 64\], found \[95, 64\]",
        ),
        (
            "weight_scale_inv",
            torch.ones(6, 5),
            r"has scales of shape \[6, 5\]; expected \[6, 4\]",
        ),
        ("weight_scale_inv", None, "missing tensors: model.layers.0.mlp.up_proj.weight_scale_inv"),
    ],
)
def test_broken_checkpoint_raises_one_error(
    name: str, tensor: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    write, _ = CASES["fp8 in blocks"]
    stored, _ = quantize(plain_tensors(LLAMA, tmp_path), write)
    del stored[f"model.layers.0.mlp.up_proj.{name}"]
    if tensor is not None:
        stored[f"model.layers.0.mlp.up_proj.{name}"] = tensor
    with pytest.raises(ModelError, match=message):
        logprobs(LLAMA, tmp_path, stored, fp8(weight_block_size=[16, 16]))
