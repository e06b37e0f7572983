"""Writers of torchao checkpoints for tests."""

from __future__ import annotations

from typing import Any

import torch

from tests.builtin_plugins.quant_methods.writers import float_formats as float_formats_writers
from tests.builtin_plugins.quant_methods.writers import quark as quark_writers
from tests.builtin_plugins.quant_methods.writers.model import (
    Tensors,
    Writer,
    round_weight,
)

Facts = dict[str, Any]


def kind(name: str, **data: Any) -> Facts:
    return {"_type": name, "_version": 2, "_data": data}


def dtype(name: str) -> Facts:
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
    """One signed byte each, and zero points of the same dtype."""

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        codes, scales, zeros, plain = round_weight(weight, bits, group, symmetric=symmetric)
        middle = 1 << (bits - 1)
        stored = {"_weight_qdata": (codes - middle).to(torch.int8), "_weight_scale": scales}
        return {**stored, "_weight_zero_point": (zeros - middle).to(torch.int8)}, plain

    return write


def nibbles(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Two signed integers per byte; scales and the values of code 0 are [groups, out]."""
    numbers = weight.view(len(weight), -1, 32)
    low = numbers.amin(2, keepdim=True)
    high = numbers.amax(2, keepdim=True)
    scales = ((high - low) / 15).bfloat16().float()
    middles = (low + scales * 8).bfloat16().float()
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
    """Return one-byte scales [rows, groups] in GPU blocks of 128 rows and 4 groups."""
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


def floats(source: Writer, *, is_swizzled: bool = False, exponents: bool = False) -> Writer:
    """Rename another writer's tensors to torchao's."""
    names = {
        "weight": "_weight_qdata",
        "weight_scale": "_weight_scale",
        "weight_scale_2": "_weight_per_tensor_scale",
    }

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        found, plain = source(weight)
        stored = {names[name]: tensor for name, tensor in found.items()}
        scales = stored["_weight_scale"]
        stored_scales = swizzled(scales).view(scales.dtype) if is_swizzled else scales
        return {
            **stored,
            "_weight_scale": stored_scales.view(torch.float8_e8m0fnu)
            if exponents
            else stored_scales,
        }, plain

    return write


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
        kind("IntxWeightOnlyConfig", weight_dtype=dtype("int4"), granularity=groups(16), **INTX),
    ),
    "int3 with zeros": (
        integers(3, 16, symmetric=False),
        kind(
            "Int8DynamicActivationIntxWeightConfig",
            weight_dtype=dtype("int3"),
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
        floats(float_formats_writers.eight_bits(1, 0)),
        kind("Float8WeightOnlyConfig", granularity=ROWS),
    ),
    "fp8 of tensors": (
        floats(float_formats_writers.eight_bits(0, 0)),
        kind("Float8DynamicActivationFloat8WeightConfig", granularity=[TENSOR, TENSOR]),
    ),
    "mxfp4": (
        floats(quark_writers.four_bits, exponents=True),
        kind(
            "MXDynamicActivationMXWeightConfig",
            block_size=32,
            weight_dtype=dtype("float4_e2m1fn_x2"),
        ),
    ),
    "mxfp4, swizzled": (
        floats(quark_writers.four_bits, is_swizzled=True, exponents=True),
        kind(
            "MXDynamicActivationMXWeightConfig",
            block_size=32,
            weight_dtype=dtype("float4_e2m1fn_x2"),
        ),
    ),
    "nvfp4, swizzled": (
        floats(float_formats_writers.four_bits, is_swizzled=True),
        kind("NVFP4WeightOnlyConfig", use_dynamic_per_tensor_scale=True),
    ),
}
