"""The C++ kernels multiply quantized weights in their stored format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from core_kernels.library import load_library

from builtin_plugins.quant_methods.bitsandbytes.method import BitsAndBytes
from builtin_plugins.quant_methods.cpu_packed.floats import PackedFloatExperts, PackedFloats
from builtin_plugins.quant_methods.cpu_packed.group_sizes import kernel_group_size, repeat_scales
from builtin_plugins.quant_methods.cpu_packed.ints import PackedIntExperts, PackedInts
from builtin_plugins.quant_methods.cpu_packed.method import make_method
from builtin_plugins.quant_methods.hqq.method import Hqq
from builtin_plugins.quant_methods.stored.backends import DequantizedBackend, select_backend
from builtin_plugins.quant_methods.stored.method import StoredMethod
from core.errors import ModelError
from tests.builtin_plugins.quant_methods.writers import bitsandbytes as bitsandbytes_writers
from tests.builtin_plugins.quant_methods.writers import float_formats as float_formats_writers
from tests.builtin_plugins.quant_methods.writers import hqq as hqq_writers
from tests.builtin_plugins.quant_methods.writers.kernel_formats import CASES, LLAMA, gptq_case
from tests.builtin_plugins.quant_methods.writers.model import (
    CheckModel,
    Tensors,
    logprobs,
    plain_tensors,
    quantize,
    whole,
)

pytestmark = pytest.mark.skipif(load_library() is None, reason="no C++ library on this machine")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("architecture", [LLAMA, "Qwen3MoeForCausalLM"])
def test_model_matches_dequantized_weights(
    architecture: str, name: str, check_model: CheckModel
) -> None:
    write, quant = CASES[name]
    check_model(write, quant, architecture, plain=make_method())


def backends(quant: StoredMethod) -> tuple[Any, Any]:
    plain: Any = make_method()
    stored = quant.format_of("model.layers.0.a")
    return tuple(
        select_backend(stored, lambda made=made: made("x"), whole(8, 256))
        for made in (plain.linear, plain.experts)
    )  # type: ignore[misc,return-value]


def test_backend_selection() -> None:
    assert [type(backend) for backend in backends(CASES["awq"][1]())] == [
        PackedInts,
        PackedIntExperts,
    ]
    assert [type(backend) for backend in backends(CASES["gptq, 4 bits with order"][1]())] == [
        PackedInts,
        DequantizedBackend,
    ]
    assert [type(backend) for backend in backends(gptq_case(8, 32, sym=False)[1]())] == [
        PackedInts,
        PackedIntExperts,
    ]
    assert [type(backend) for backend in backends(gptq_case(8, 12, sym=False)[1]())] == [
        DequantizedBackend,
        DequantizedBackend,
    ]
    assert [type(backend) for backend in backends(float_formats_writers.fp8())] == [
        PackedFloats,
        PackedFloatExperts,
    ]
    assert [type(backend) for backend in backends(float_formats_writers.modelopt("NVFP4"))] == [
        PackedFloats,
        PackedFloatExperts,
    ]
    assert [type(backend) for backend in backends(CASES["bitsandbytes nf4"][1]())] == [
        PackedFloats,
        PackedFloatExperts,
    ]
    assert [type(backend) for backend in backends(CASES["hqq, 4 bits"][1]())] == [
        PackedInts,
        PackedIntExperts,
    ]
    assert [type(backend) for backend in backends(hqq_columns())] == [
        DequantizedBackend,
        DequantizedBackend,
    ]
    assert [kernel_group_size(size) for size in (-1, 32, 48, 12, 512, 1024)] == [
        128,
        32,
        48,
        0,
        256,
        256,
    ]


@pytest.mark.parametrize(
    ("width", "of", "group", "groups"),
    [(1280, 1024, 256, [0] * 4 + [1]), (300, 300, 128, [0] * 3), (96, 32, 32, [0, 1, 2])],
)
def test_scales_repeat_for_smaller_kernel_groups(
    width: int, of: int, group: int, groups: list[int]
) -> None:
    scales = torch.arange(-(-width // of)).expand(2, -1)
    assert repeat_scales(scales, width, of, group).tolist() == [groups, groups]


def hqq_columns() -> StoredMethod:
    """Return a method with groups along the outputs."""
    return Hqq(hqq_writers.config(4, 16, 0))


@pytest.mark.parametrize(
    ("inputs", "kind"), [([128, 64], PackedFloats), ([128, 96], DequantizedBackend)]
)
def test_rows_ending_inside_blocks_are_dequantized(inputs: list[int], kind: type) -> None:
    stored = BitsAndBytes(bitsandbytes_writers.config()).format_of("model.layers.0.a")
    plain: Any = make_method()
    assert (
        type(select_backend(stored, lambda: plain.linear("x"), whole(8, inputs[0]), inputs)) is kind
    )


def test_unsupported_block_sizes_and_codebooks_are_rejected(
    tmp_path: Path,
) -> None:
    def load(tensors: Tensors) -> None:
        logprobs(
            LLAMA,
            tmp_path,
            tensors,
            BitsAndBytes(bitsandbytes_writers.config()),
            plain=make_method(),
        )

    tensors = plain_tensors(LLAMA, tmp_path)
    with pytest.raises(
        ModelError,
        match=r"gate_proj.* has group size 32; the kernels expect 64. Use --plugins",
    ):
        load(quantize(tensors, bitsandbytes_writers.writer(block=32))[0])
    stored = quantize(tensors, bitsandbytes_writers.writer())[0]
    stored["model.layers.0.mlp.up_proj.weight.quant_map"] = torch.linspace(-1, 1, 16)
    with pytest.raises(ModelError, match=r"up_proj.* has another codebook"):
        load(stored)


def test_g_idx_with_unequal_groups_is_rejected(tmp_path: Path) -> None:
    write, quant = CASES["gptq, 4 bits with order"]
    stored, _ = quantize(plain_tensors(LLAMA, tmp_path), write)
    stored["model.layers.0.mlp.up_proj.g_idx"][:20] = 1
    with pytest.raises(ModelError, match=r"up_proj.* has groups of unequal size"):
        logprobs(LLAMA, tmp_path, stored, quant(), plain=make_method())
