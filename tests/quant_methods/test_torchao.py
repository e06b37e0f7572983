"""torchao checkpoints give what their tensors dequantize to: packed here after the published
layouts, and by the library.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.torchao.method import TorchAo
from core.errors import ModelError
from tests.quant_methods import test_floats, test_quark
from tests.quant_methods.stored import (
    Tensors,
    Writer,
    assert_alike,
    checkpoint,
    is_linear,
    on_two_ranks,
    packed,
    rounded,
    scores,
)

LLAMA = "LlamaForCausalLM"
Facts = dict[str, Any]


def kind(name: str, **data: Any) -> Facts:
    return {"_type": name, "_version": 2, "_data": data}


def said(name: str) -> Facts:
    return {"_type": "torch.dtype", "_data": name}


def groups(size: int) -> Facts:
    return kind("PerGroup", group_size=size)


ROWS = kind("PerRow", dim=-1)
AXIS = kind("PerAxis", axis=0)
TENSOR = kind("PerTensor")


def config(default: Facts, **more: Any) -> Facts:
    plain = {"modules_to_not_convert": None, "include_input_output_embeddings": False}
    return {"quant_method": "torchao", "quant_type": {"default": default}, **plain, **more}


def integers(bits: int, group: int = -1, *, symmetric: bool = True) -> Writer:
    """A byte for each, signed, and zero points of the same type."""

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        codes, scales, zeros, plain = rounded(weight, bits, group, symmetric=symmetric)
        middle = 1 << (bits - 1)
        stored = {"_weight_qdata": (codes - middle).to(torch.int8), "_weight_scale": scales}
        return {**stored, "_weight_zero_point": (zeros - middle).to(torch.int8)}, plain

    return write


def nibbles(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Two signed integers in a byte; scales and what zero stands for are [groups, out]."""
    numbers = weight.view(len(weight), -1, 32)
    least = numbers.amin(2, keepdim=True)
    most = numbers.amax(2, keepdim=True)
    scales = ((most - least) / 15).bfloat16().float()
    middles = (least + scales * 8).bfloat16().float()
    codes = ((numbers - middles) / scales).round().clamp(-8, 7)
    plain = (codes * scales + middles).view(weight.shape)
    codes = codes.view(weight.shape).to(torch.int8)
    stored = {"_weight_qdata": (codes[:, 0::2] & 15) | (codes[:, 1::2] << 4)}
    stored |= {
        "_weight_scale": scales[..., 0].T.contiguous(),
        "_weight_zero_point": middles[..., 0].T.contiguous(),
    }
    return stored, plain


def swizzled(scales: torch.Tensor) -> torch.Tensor:
    """Return scales [rows, groups] of a byte in the order of a GPU's kernel: blocks of 128 rows and
    4 groups.
    """
    rows, columns = scales.shape
    down = -(-rows // 128)
    across = -(-columns // 4)
    filled = torch.zeros(down * 128, across * 4, dtype=torch.uint8)
    filled[:rows, :columns] = scales.view(torch.uint8)
    out = torch.zeros(down * across, 32, 16, dtype=torch.uint8)
    for i in range(down * 128):
        for j in range(across * 4):
            out[i // 128 * across + j // 4, i % 32, i % 128 // 32 * 4 + j % 4] = filled[i, j]
    return out.view(32 * down, 16 * across)


def floats(write: Writer, *, turned: bool = False, exponents: bool = False) -> Writer:
    """The names of torchao's tensors for what another format's writer makes."""
    names = {
        "weight": "_weight_qdata",
        "weight_scale": "_weight_scale",
        "weight_scale_2": "_weight_per_tensor_scale",
    }

    def own(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        found, plain = write(weight)
        stored = {names[name]: tensor for name, tensor in found.items()}
        scales = stored["_weight_scale"]
        kept = swizzled(scales).view(scales.dtype) if turned else scales
        return {
            **stored,
            "_weight_scale": kept.view(torch.float8_e8m0fnu) if exponents else kept,
        }, plain

    return own


INTX: Facts = {"intx_packing_format": kind("IntxPackingFormat") | {"_data": "UNPACKED_TO_INT8"}}
CASES: dict[str, tuple[Writer, Facts]] = {
    "int8 in rows": (integers(8), kind("Int8WeightOnlyConfig", group_size=None, granularity=ROWS)),
    "int8 in groups": (integers(8, 16), kind("Int8WeightOnlyConfig", granularity=groups(16))),
    "int8, older": (integers(8, 16), kind("Int8WeightOnlyConfig", group_size=16)),
    "int8 by int8": (
        integers(8),
        kind("Int8DynamicActivationInt8WeightConfig", granularity=[ROWS, ROWS]),
    ),
    "int4 in groups": (
        integers(4, 16),
        kind("IntxWeightOnlyConfig", weight_dtype=said("int4"), granularity=groups(16), **INTX),
    ),
    "int3 with zeros": (
        integers(3, 16, symmetric=False),
        kind(
            "Int8DynamicActivationIntxWeightConfig",
            weight_dtype=said("int3"),
            weight_granularity=groups(16),
            weight_mapping_type={"_type": "MappingType", "_data": "ASYMMETRIC"},
            **INTX,
        ),
    ),
    "int4 in nibbles": (
        nibbles,
        kind("Int4WeightOnlyConfig", group_size=32, int4_packing_format={"_data": "PLAIN"}),
    ),
    "fp8 in rows": (
        floats(test_floats.eight_bits(1, 0)),
        kind("Float8WeightOnlyConfig", granularity=ROWS),
    ),
    "fp8 of tensors": (
        floats(test_floats.eight_bits(0, 0)),
        kind("Float8DynamicActivationFloat8WeightConfig", granularity=[TENSOR, TENSOR]),
    ),
    "mxfp4": (
        floats(test_quark.four_bits, exponents=True),
        kind(
            "MXDynamicActivationMXWeightConfig",
            block_size=32,
            weight_dtype=said("float4_e2m1fn_x2"),
        ),
    ),
    "mxfp4, swizzled": (
        floats(test_quark.four_bits, turned=True, exponents=True),
        kind(
            "MXDynamicActivationMXWeightConfig",
            block_size=32,
            weight_dtype=said("float4_e2m1fn_x2"),
        ),
    ),
    "nvfp4, swizzled": (
        floats(test_floats.four_bits, turned=True),
        kind("NVFP4WeightOnlyConfig", use_dynamic_per_tensor_scale=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_model_computes_what_its_numbers_stand_for(name: str, tmp_path: Path) -> None:
    write, facts = CASES[name]
    stored, plain = packed(checkpoint(LLAMA, tmp_path, intermediate_size=128), write)
    expected = scores(LLAMA, tmp_path, plain)
    assert_alike(scores(LLAMA, tmp_path, stored, TorchAo(config(facts))), expected)
    assert_alike(on_two_ranks(LLAMA, tmp_path, stored, lambda: TorchAo(config(facts))), expected)


def made() -> dict[str, Callable[[], Any]]:
    """What the library makes on a CPU."""
    from torchao import quantization as ao
    from torchao.prototype import mx_formats as mx

    bits = {"weight_dtype": torch.int4}
    return {
        "int8 in rows": ao.Int8WeightOnlyConfig,
        "int8 in groups": lambda: ao.Int8WeightOnlyConfig(granularity=ao.PerGroup(32)),
        "int8 by int8": ao.Int8DynamicActivationInt8WeightConfig,
        "fp8 in rows": ao.Float8WeightOnlyConfig,
        "int4 in groups": lambda: ao.IntxWeightOnlyConfig(**bits, granularity=ao.PerGroup(32)),
        "int4 with zeros": lambda: ao.IntxWeightOnlyConfig(
            **bits, granularity=ao.PerGroup(32), mapping_type=ao.MappingType.ASYMMETRIC
        ),
        "int2 in rows": lambda: ao.IntxWeightOnlyConfig(
            weight_dtype=torch.int2, granularity=ao.PerAxis(0)
        ),
        "int8 by int4": lambda: ao.Int8DynamicActivationIntxWeightConfig(
            **bits, weight_granularity=ao.PerGroup(32)
        ),
        "mxfp8": lambda: mx.MXDynamicActivationMXWeightConfig(
            activation_dtype=torch.float8_e4m3fn, weight_dtype=torch.float8_e4m3fn
        ),
        "mxfp4": lambda: mx.MXDynamicActivationMXWeightConfig(
            activation_dtype=torch.float4_e2m1fn_x2, weight_dtype=torch.float4_e2m1fn_x2
        ),
        "nvfp4": mx.NVFP4WeightOnlyConfig,
    }


LIBRARY = [
    "int8 in rows",
    "int8 in groups",
    "int8 by int8",
    "fp8 in rows",
    "int4 in groups",
    "int4 with zeros",
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [*LIBRARY, "int2 in rows", "int8 by int4", "mxfp8", "mxfp4", "nvfp4"]
)
def test_what_the_library_writes_is_read(name: str, tmp_path: Path) -> None:
    ao = pytest.importorskip("torchao.quantization")
    from torchao.core.config import config_to_dict
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    facts = made()[name]()

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        module = torch.nn.Sequential(torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False))
        module[0].weight.data = weight.bfloat16() if "fp" in name else weight
        ao.quantize_(module, facts)
        tensors, _ = flatten_tensor_state_dict(module.state_dict())
        own = module[0].weight
        plain = own.dequantize(torch.float32) if "fp" in name else own.dequantize()
        return {key.removeprefix("0."): tensor for key, tensor in tensors.items()}, plain.float()

    stored, plain = packed(checkpoint(LLAMA, tmp_path, intermediate_size=128), write)
    quant = TorchAo(config(config_to_dict(facts)))
    assert_alike(scores(LLAMA, tmp_path, stored, quant), scores(LLAMA, tmp_path, plain))


def test_modules_may_have_configs_of_their_own(tmp_path: Path) -> None:
    tensors = checkpoint(LLAMA, tmp_path)
    which = {
        "int8 in rows": lambda name: name == "model.layers.0.self_attn.q_proj.weight",
        "int8 in groups": lambda name: name.endswith("up_proj.weight"),
        "int4 in groups": lambda name: (
            is_linear(name)
            and "layers.0.self_attn.q_proj" not in name
            and not name.endswith(("up_proj.weight", "k_proj.weight"))
        ),
    }
    stored = plain = tensors
    for name, chosen in which.items():
        stored = packed(stored, CASES[name][0], chosen)[0]
        plain = packed(plain, CASES[name][0], chosen)[1]
    names = ["model.layers.0.self_attn.q_proj", r"re:.*\.up_proj", "_default"]
    by_name: Facts = {own: CASES[name][1] for own, name in zip(names, which, strict=True)}
    quant = TorchAo(config(kind("FqnToConfig", fqn_to_config={r"re:.*\.k_proj": None, **by_name})))
    assert_alike(scores(LLAMA, tmp_path, stored, quant), scores(LLAMA, tmp_path, plain))


def test_embedding_and_head_may_be_quantized_and_modules_be_plain(tmp_path: Path) -> None:
    def which(name: str) -> bool:
        ends = ("lm_head.weight", "embed_tokens.weight")
        return (is_linear(name) and "v_proj" not in name) or name.endswith(ends)

    write, facts = CASES["int8 in rows"]
    stored, plain = packed(checkpoint(LLAMA, tmp_path), write, which)
    ends = {"include_input_output_embeddings": True, "modules_to_not_convert": ["v_proj"]}
    quant = TorchAo(config(facts, **ends))
    assert_alike(scores(LLAMA, tmp_path, stored, quant), scores(LLAMA, tmp_path, plain))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_type": "int8_weight_only"}, "quant_type is 'int8_weight_only'; it is an object"),
        (
            {"quant_type": {"default": kind("GemliteUIntXWeightOnlyConfig")}},
            "quant_type .*Gemlite.* is not read. Read are Int8",
        ),
        (
            {
                "quant_type": {
                    "default": kind(
                        "Int4WeightOnlyConfig", int4_packing_format={"_data": "PRESHUFFLED"}
                    )
                }
            },
            "PRESHUFFLED.* is not read",
        ),
        (
            {"quant_type": {"default": kind("Int8WeightOnlyConfig", granularity=kind("PerToken"))}},
            "granularity .*PerToken",
        ),
    ],
)
def test_what_is_not_read_is_refused_by_name(change: Facts, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        TorchAo({**config(kind("Int8WeightOnlyConfig")), **change})


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("_weight_qdata", torch.zeros(96, 64), "up_proj.* has a _weight_qdata of float32"),
        ("_weight_scale", torch.ones(5, 1), r"has scales of shape \[5, 1\]"),
        (
            "_weight_zero_point",
            torch.ones(96, 1, dtype=torch.int8),
            "has zero points, and the quantization config says",
        ),
    ],
)
def test_a_broken_checkpoint_is_one_clear_error(
    name: str, tensor: torch.Tensor, message: str, tmp_path: Path
) -> None:
    write, facts = CASES["int8 in rows"]
    stored, _ = packed(checkpoint(LLAMA, tmp_path), write)
    stored[f"model.layers.0.mlp.up_proj.{name}"] = tensor
    with pytest.raises(ModelError, match=message):
        scores(LLAMA, tmp_path, stored, TorchAo(config(facts)))
