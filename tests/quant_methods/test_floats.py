"""Checkpoints of eight- and four-bit floats, as fp8, fbgemm_fp8 and modelopt store them, give what
their numbers stand for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.fp8.method import FbgemmFp8, Fp8
from builtin_plugins.quant_methods.modelopt.method import ModelOpt
from builtin_plugins.quant_methods.stored.method import StoredMethod
from core.errors import ModelError
from tests.quant_methods.stored import (
    Tensors,
    Writer,
    assert_alike,
    checkpoint,
    is_linear,
    on_two_ranks,
    packed,
    scores,
)

LLAMA = "LlamaForCausalLM"
HIGHEST = 448.0
"""Of eight-bit floats with four bits of exponent."""
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def spread(scales: torch.Tensor, rows: int, columns: int, shape: torch.Size) -> torch.Tensor:
    return scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[: shape[0], : shape[1]]


def eight_bits(rows: int, columns: int, scale: str = "weight_scale", view: str = "") -> Writer:
    """Write a scale for so many rows and columns, 0 meaning all."""

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        high = rows or weight.shape[0]
        wide = columns or weight.shape[1]
        down = -(-weight.shape[0] // high)
        across = -(-weight.shape[1] // wide)
        scales = torch.empty(down, across)
        for i in range(down):
            for j in range(across):
                scales[i, j] = (
                    weight[i * high : (i + 1) * high, j * wide : (j + 1) * wide].abs().max()
                    / HIGHEST
                )
        if view == "exponents":
            scales = torch.exp2(scales.log2().ceil())
        whole = spread(scales, high, wide, weight.shape)
        values = (weight / whole).clamp(-HIGHEST, HIGHEST).to(torch.float8_e4m3fn)
        stored = {
            "": lambda: scales,
            "scalar": lambda: scales.reshape(()),
            "flat": lambda: scales.reshape(-1),
            "four axes": lambda: scales[:, None, :, None].contiguous(),
            "exponents": lambda: scales.to(torch.float8_e8m0fnu),
        }[view]()
        return {"weight": values, scale: stored}, values.float() * whole

    return write


def four_bits(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Two floats in a byte, eight-bit scales of sixteen, and a scale of the tensor that they are
    multiplied by.
    """
    groups = weight.view(len(weight), -1, 16)
    whole = weight.abs().max() / (6.0 * HIGHEST)
    scales = (groups.abs().amax(2) / 6.0 / whole).to(torch.float8_e4m3fn)
    own = (scales.float() * whole).unsqueeze(-1)
    codes = ((groups / own).abs().unsqueeze(-1) - E2M1).abs().argmin(-1)
    plain = E2M1[codes] * groups.sign() * own
    codes = (codes + 8 * (groups < 0)).view(weight.shape)
    stored = (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8)
    return {"weight": stored, "weight_scale": scales, "weight_scale_2": whole}, plain.view(
        weight.shape
    )


def fp8(**more: Any) -> Fp8:
    return Fp8({"quant_method": "fp8", "activation_scheme": "dynamic", **more})


def modelopt(algorithm: str, **more: Any) -> ModelOpt:
    return ModelOpt(
        {
            "quant_method": "modelopt",
            "quant_algo": algorithm,
            "exclude_modules": ["lm_head"],
            **more,
        }
    )


Case = tuple[Writer, Callable[[], StoredMethod]]
CASES: dict[str, Case] = {
    "fp8 of tensors": (eight_bits(0, 0, view="scalar"), fp8),
    "fp8 of tensors, as transformers names scales": (eight_bits(0, 0, "weight_scale_inv"), fp8),
    "fp8 in blocks": (
        eight_bits(16, 16, "weight_scale_inv"),
        lambda: fp8(weight_block_size=[16, 16]),
    ),
    "fp8 in blocks that end early": (
        eight_bits(48, 16, "weight_scale_inv"),
        lambda: fp8(weight_block_size=[48, 16]),
    ),
    "fp8 in blocks, exponents": (
        eight_bits(16, 32, "weight_scale_inv", "exponents"),
        lambda: fp8(weight_block_size=[16, 32]),
    ),
    "fbgemm_fp8": (eight_bits(1, 0), lambda: FbgemmFp8({"quant_method": "fbgemm_fp8"})),
    "modelopt FP8": (eight_bits(0, 0, view="scalar"), lambda: modelopt("FP8")),
    "modelopt FP8 in rows": (
        eight_bits(1, 0, view="flat"),
        lambda: modelopt("FP8_PER_CHANNEL_PER_TOKEN"),
    ),
    "modelopt FP8 in blocks": (
        eight_bits(128, 128, view="four axes"),
        lambda: modelopt("FP8_PB_WO"),
    ),
    "modelopt NVFP4": (four_bits, lambda: modelopt("NVFP4")),
}


@pytest.mark.parametrize("name", CASES)
def test_a_model_computes_what_its_floats_stand_for(name: str, tmp_path: Path) -> None:
    write, quant = CASES[name]
    stored, plain = packed(checkpoint(LLAMA, tmp_path), write)
    assert_alike(scores(LLAMA, tmp_path, stored, quant()), scores(LLAMA, tmp_path, plain))


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
def test_architectures_with_experts_latents_and_fused_weights(
    architecture: str, name: str, tmp_path: Path
) -> None:
    write, quant = CASES[name]
    stored, plain = packed(checkpoint(architecture, tmp_path), write)
    assert_alike(
        scores(architecture, tmp_path, stored, quant()), scores(architecture, tmp_path, plain)
    )


@pytest.mark.parametrize(
    "name", ["fp8 of tensors", "fp8 in blocks", "modelopt NVFP4", "fbgemm_fp8"]
)
def test_two_ranks_give_what_one_gives(name: str, tmp_path: Path) -> None:
    write, quant = CASES[name]
    stored, plain = packed(checkpoint(LLAMA, tmp_path), write)
    assert_alike(on_two_ranks(LLAMA, tmp_path, stored, quant), scores(LLAMA, tmp_path, plain))


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
def test_modules_that_the_config_names_are_plain(
    quant: Callable[[], StoredMethod], tmp_path: Path
) -> None:
    def which(name: str) -> bool:
        others = ("layers.0.self_attn.k_proj", "layers.1.", "up_proj")
        return is_linear(name) and not any(other in name for other in others)

    stored, plain = packed(checkpoint(LLAMA, tmp_path), eight_bits(0, 0), which)
    assert_alike(scores(LLAMA, tmp_path, stored, quant()), scores(LLAMA, tmp_path, plain))


def test_layers_may_have_algorithms_of_their_own(tmp_path: Path) -> None:
    tensors = checkpoint(LLAMA, tmp_path)
    small = [name for name in tensors if is_linear(name) and ".mlp." in name]
    large = [name for name in tensors if name.endswith("q_proj.weight")]
    stored, plain = packed(tensors, four_bits, small.__contains__)
    write = eight_bits(0, 0)
    stored = packed(stored, write, large.__contains__)[0]
    plain = packed(plain, write, large.__contains__)[1]
    layers = {
        name.removesuffix(".weight"): {"quant_algo": "NVFP4" if name in small else "FP8"}
        for name in small + large
    }
    quant = modelopt("MIXED_PRECISION", quantized_layers=layers)
    assert_alike(scores(LLAMA, tmp_path, stored, quant), scores(LLAMA, tmp_path, plain))


def test_a_head_may_be_stored_so(tmp_path: Path) -> None:
    def which(name: str) -> bool:
        return is_linear(name) or name == "lm_head.weight"

    stored, plain = packed(checkpoint(LLAMA, tmp_path), four_bits, which)
    quant = modelopt("NVFP4", exclude_modules=[])
    assert_alike(scores(LLAMA, tmp_path, stored, quant), scores(LLAMA, tmp_path, plain))


def test_algorithms_and_blocks_that_there_are_not_are_refused() -> None:
    with pytest.raises(ModelError, match=r"quant_algo is 'W4A8_AWQ'; read are FP8, .*NVFP4"):
        modelopt("W4A8_AWQ")
    with pytest.raises(ModelError, match=r"weight_block_size is \[128, 0\]; it is two sizes"):
        fp8(weight_block_size=[128, 0])


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "weight",
            torch.zeros(96, 64),
            "up_proj.* has a weight of float32, which is none of eight-bit floats",
        ),
        (
            "weight",
            torch.zeros(95, 64).to(torch.float8_e4m3fn),
            r"up_proj.weight: expected \[96, 64\], found \[95, 64\]",
        ),
        (
            "weight_scale_inv",
            torch.ones(6, 5),
            r"has scales of shape \[6, 5\]; .* which is \[6, 4\]",
        ),
        ("weight_scale_inv", None, "missing tensors: model.layers.0.mlp.up_proj.weight_scale_inv"),
    ],
)
def test_a_broken_checkpoint_is_one_clear_error(
    name: str, tensor: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    write, _ = CASES["fp8 in blocks"]
    stored, _ = packed(checkpoint(LLAMA, tmp_path), write)
    del stored[f"model.layers.0.mlp.up_proj.{name}"]
    if tensor is not None:
        stored[f"model.layers.0.mlp.up_proj.{name}"] = tensor
    with pytest.raises(ModelError, match=message):
        scores(LLAMA, tmp_path, stored, fp8(weight_block_size=[16, 16]))
