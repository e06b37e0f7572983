"""On a GPU numbers of stored formats stay as they are and are multiplied by Triton, here through
its interpreter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from core_kernels.triton.quantized import FloatOps, QuantizedOps
from core_kernels.triton.scaled import ScaledFloatOps

from builtin_plugins.quant_methods.packed.floats import PackedFloatExperts, PackedFloats
from builtin_plugins.quant_methods.packed.ints import PackedIntExperts, PackedInts
from builtin_plugins.quant_methods.rounded.method import Int4, Int8
from builtin_plugins.quant_methods.stored.keeping import PlainKeeper, keeper_of
from builtin_plugins.quant_methods.stored.layouts import Grouping
from builtin_plugins.quant_methods.triton.method import Float8Weights, TritonWeights
from builtin_plugins.quant_methods.triton.plugin import engine_quant_methods
from core.config import EngineConfig
from tests.quant_methods import test_floats, test_mxfp4
from tests.quant_methods.stored import assert_alike, checkpoint, packed, scores
from tests.quant_methods.test_kept_integers import CASES, LLAMA, gptq
from tests.quant_methods.test_layouts import whole


def of_model(architecture: str, name: str, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores of a model with numbers as they are stored, and with what they stand for."""
    write, quant = CASES[name]
    stored, plain = packed(checkpoint(architecture, folder), write)
    return scores(architecture, folder, stored, quant(), plain=TritonWeights()), scores(
        architecture, folder, plain
    )


def test_a_model_computes_what_its_numbers_stand_for(tmp_path: Path) -> None:
    assert_alike(*of_model(LLAMA, "gptq, 4 bits with zeros and order", tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("architecture", [LLAMA, "Qwen3MoeForCausalLM"])
def test_every_format_and_experts(architecture: str, name: str, tmp_path: Path) -> None:
    assert_alike(*of_model(architecture, name, tmp_path))


def keepers(quant: Any) -> list[Any]:
    """Return who keeps a layer's and experts' numbers, and what multiplies by the layer's."""
    plain = TritonWeights()
    stored = quant.format_of("model.layers.0.a")
    found: list[Any] = [
        keeper_of(stored, lambda made=made: made("x"), whole(8, 256))
        for made in (plain.linear, plain.experts)
    ]
    return [*map(type, found), type(found[0]._ops)]


def test_who_keeps_what() -> None:
    assert keepers(CASES["awq"][1]()) == [PackedInts, PackedIntExperts, QuantizedOps]
    assert keepers(CASES["gptq, 4 bits with order"][1]()) == [PackedInts, PlainKeeper, QuantizedOps]
    assert keepers(gptq(8, 12, sym=False)[1]()) == [PackedInts, PackedIntExperts, QuantizedOps]
    assert keepers(test_floats.fp8()) == [PackedFloats, PackedFloatExperts, FloatOps]
    assert keepers(test_floats.modelopt("NVFP4")) == [
        PackedFloats,
        PackedFloatExperts,
        QuantizedOps,
    ]


def test_inputs_are_rounded_only_of_checkpoints_that_were_made_for_that() -> None:
    method: Any = Float8Weights().linear("x")
    for x_bits, ops in ((16, FloatOps), (8, ScaledFloatOps)):
        assert type(method.keeps(Grouping(8, 128, is_float=True, x_bits=x_bits))._ops) is ops
    by_row, by_block = (
        test_floats.fp8(**more).format_of("a").grouping
        for more in ({}, {"weight_block_size": [128, 128]})
    )
    assert (by_row.x_bits, by_block.x_bits) == (8, 8)


def test_the_device_says_which_is_taken() -> None:
    first, second = engine_quant_methods()
    assert first.when == {"triton": [True]}
    assert second.when == {"triton": [True], "float8": [True], "dtype": ["bfloat16"]}
    assert second.priority > first.priority


@pytest.mark.slow
def test_experts_of_four_bit_floats(tmp_path: Path) -> None:
    stored, plain = test_mxfp4.packed(checkpoint(test_mxfp4.GPT_OSS, tmp_path))
    found = scores(test_mxfp4.GPT_OSS, tmp_path, stored, test_mxfp4.method(), plain=TritonWeights())
    assert_alike(found, scores(test_mxfp4.GPT_OSS, tmp_path, plain))


@pytest.mark.parametrize("method", [pytest.param(Int8, marks=pytest.mark.slow), Int4])
def test_plain_weights_are_rounded_by_the_devices_kernels(method: Any, tmp_path: Path) -> None:
    tensors = checkpoint(LLAMA, tmp_path)
    quant = method(None, EngineConfig())
    found = scores(LLAMA, tmp_path, tensors, quant, plain=TritonWeights())
    assert "_ops" not in vars(quant)  # the CPU's were not asked for
    torch.testing.assert_close(
        found, scores(LLAMA, tmp_path, tensors, method(None, EngineConfig())), atol=0.05, rtol=0
    )
