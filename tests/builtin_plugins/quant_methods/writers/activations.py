"""Combinations of rounded activations, with a simulation of each that shares no code with ours."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from builtin_plugins.quant_methods.fp8.method import FbgemmFp8, Fp8
from builtin_plugins.quant_methods.modelopt.method import ModelOpt
from builtin_plugins.quant_methods.quark.method import Quark
from builtin_plugins.quant_methods.stored.method import StoredMethod
from builtin_plugins.quant_methods.torchao.method import TorchAo
from core.models.layers.experts import PlainExperts
from core.models.layers.linear import PlainLinear
from core.models.ops.reference import expert_activation
from tests.builtin_plugins.quant_methods.writers import compressed_tensors as ct
from tests.builtin_plugins.quant_methods.writers import float_formats, quark, torchao
from tests.builtin_plugins.quant_methods.writers.model import Tensors, Writer

Round = Callable[[torch.Tensor], torch.Tensor]


def engine(mode: str) -> Any:
    return SimpleNamespace(options={"activation_quantization": mode})


def floats(largest: float, group: int = 0, dtype: torch.dtype = torch.float8_e4m3fn) -> Round:
    """Round with a scale per token or group, by torch's conversion."""

    def simulate(x: torch.Tensor) -> torch.Tensor:
        groups = x.unflatten(-1, (-1, group or x.shape[-1]))
        scales = groups.abs().amax(-1, keepdim=True).clamp(min=1e-12) / largest
        values = (groups / scales).clamp(-largest, largest).to(dtype).float()
        return (values * scales).flatten(-2)

    return simulate


def static_floats(scale: float) -> Round:
    return lambda x: (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def integers(bits: int = 8) -> Round:
    top = 2 ** (bits - 1) - 1

    def simulate(x: torch.Tensor) -> torch.Tensor:
        scales = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / top
        return (x / scales).round() * scales

    return simulate


def asymmetric(x: torch.Tensor) -> torch.Tensor:
    low = x.amin(-1, keepdim=True).clamp(max=0)
    scales = (x.amax(-1, keepdim=True).clamp(min=0) - low) / 255
    zeros = (-128 - low / scales).round()
    return (((x / scales).round() + zeros).clamp(-128, 127) - zeros) * scales


def static_integers(scale: float, zero: int = 0) -> Round:
    return lambda x: (((x / scale).round() + zero).clamp(-128, 127) - zero) * scale


def nearest(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the nearest values; of two as near, that with the even code, as tools do."""
    distances = (x.abs().unsqueeze(-1) - values).abs()
    is_tie = distances == distances.amin(-1, keepdim=True)
    odd = torch.arange(len(values)) % 2
    return values[(is_tie * (2 - odd)).argmax(-1)] * x.sign()


def nvfp4(outer: float) -> Round:
    def simulate(x: torch.Tensor) -> torch.Tensor:
        groups = x.unflatten(-1, (-1, 16))
        scales = groups.abs().amax(-1, keepdim=True) / 6 / outer
        scales = scales.clamp(max=448).to(torch.float8_e4m3fn).float() * outer
        scales = torch.where(scales == 0, 1, scales)
        return (nearest(float_formats.E2M1, groups / scales) * scales).flatten(-2)

    return simulate


def mxfp4(x: torch.Tensor) -> torch.Tensor:
    groups = x.unflatten(-1, (-1, 32))
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    exponents = amax.log2().floor()
    exponents += amax / exponents.exp2() >= 1.75
    scales = (exponents - 2).exp2()
    return (nearest(float_formats.E2M1, groups / scales) * scales).flatten(-2)


def mxfp8(x: torch.Tensor) -> torch.Tensor:
    groups = x.unflatten(-1, (-1, 32))
    scales = (groups.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 448).log2().ceil().exp2()
    return ((groups / scales).to(torch.float8_e4m3fn).float() * scales).flatten(-2)


def ct_case(name: str, **inputs: Any) -> tuple[Writer, Callable[[Any], StoredMethod]]:
    layout, facts = ct.SCHEMES[name]
    settings = ct.config(layout, facts)
    settings["config_groups"]["group_0"]["input_activations"] = {"symmetric": True, **inputs}
    return ct.library_writer(layout, facts), lambda own: CompressedTensors(settings, own)


def quark_case(name: str, **inputs: Any) -> tuple[Writer, Callable[[Any], StoredMethod]]:
    write, facts = quark.CASES[name]
    settings = quark.config({**facts, "input_tensors": inputs})
    return write, lambda own: Quark(settings, own)


def torchao_case(name: str, kind: str, **data: Any) -> tuple[Writer, Callable[[Any], StoredMethod]]:
    settings = torchao.config(torchao.kind(kind, **data))
    return torchao.CASES[name][0], lambda own: TorchAo(settings, own)


def fp8_case(**facts: Any) -> tuple[Writer, Callable[[Any], StoredMethod]]:
    write = float_formats.CASES["fp8 in blocks" if "weight_block_size" in facts else MODEL_FP8][0]
    return write, lambda own: Fp8({"quant_method": "fp8", **facts}, own)


MODEL_FP8 = "fp8 of tensors"
Case = tuple[tuple[Writer, Callable[[Any], StoredMethod]], Tensors, Round]
NO: Tensors = {}
TOKEN = {"strategy": "token", "dynamic": True}
MODELOPT = {
    name: (
        float_formats.CASES[f"modelopt {name}"][0],
        lambda own, name=name: ModelOpt(
            {"quant_method": "modelopt", "quant_algo": name, "exclude_modules": ["lm_head"]}, own
        ),
    )
    for name in ("FP8", "NVFP4")
}


def cases(amax: float = 6.0) -> dict[str, Case]:
    """Return (writer and method, tensors of activations, simulation) of each combination.

    `amax`: the magnitude that static scales represent.
    """
    by_int = amax / 127
    by_float = amax / 448
    by_four = amax / (448 * 6)
    of_ints, of_floats = ({"input_scale": torch.tensor(scale)} for scale in (by_int, by_float))
    rows = torchao.ROWS
    tensor = torchao.TENSOR
    int8 = {"num_bits": 8, "type": "int"}
    fp8 = {"num_bits": 8, "type": "float"}
    zero = {**of_ints, "input_zero_point": torch.tensor([3], dtype=torch.int8)}
    outer = {"input_global_scale": torch.tensor([1 / by_four])}
    stored_ints, stored_floats = (
        {"_weight_act_quant_scale": torch.tensor([[scale]])} for scale in (by_int, by_float)
    )
    static = {"strategy": "tensor", "dynamic": False}
    intx = {**torchao.INTX, "weight_granularity": torchao.groups(16)}
    intx["weight_dtype"] = torchao.dtype("int3")
    intx["weight_mapping_type"] = {"_type": "MappingType", "_data": "ASYMMETRIC"}
    four = {"num_bits": 4, "type": "float"}
    return {
        "ct int8 per token": (ct_case("int8 in rows", **int8, **TOKEN), NO, integers()),
        "ct int8 per token, asymmetric": (
            ct_case("int8 in rows", **int8, **TOKEN, symmetric=False), NO, asymmetric,
        ),
        "ct int8 static": (
            ct_case("int8 in rows", **int8, **static), of_ints, static_integers(by_int),
        ),
        "ct int8 static, asymmetric": (
            ct_case("int8 in rows", **int8, **static, symmetric=False),
            zero, static_integers(by_int, 3),
        ),
        "ct int4 weights by int8 per token": (
            ct_case("int4 in groups", **int8, **TOKEN), NO, integers(),
        ),
        "ct fp8 per token": (ct_case("fp8 in rows", **fp8, **TOKEN), NO, floats(448)),
        "ct fp8 per tensor, dynamic": (
            ct_case("fp8 of tensors", **fp8, strategy="tensor", dynamic=True), NO, floats(448),
        ),
        "ct fp8 static": (
            ct_case("fp8 of tensors", **fp8, **static), of_floats, static_floats(by_float),
        ),
        "ct fp8 in blocks": (
            ct_case("fp8 in blocks", **fp8, strategy="group", group_size=16, dynamic=True),
            NO, floats(448, 16),
        ),
        "ct nvfp4": (
            ct_case("nvfp4", **four, strategy="tensor_group", group_size=16, dynamic="local"),
            outer, nvfp4(by_four),
        ),
        "ct mxfp4": (
            ct_case("mxfp4", **four, strategy="group", group_size=32, dynamic=True), NO, mxfp4,
        ),
        "fp8 dynamic": (fp8_case(activation_scheme="dynamic"), NO, floats(448)),
        "fp8 static": (fp8_case(activation_scheme="static"), of_floats, static_floats(by_float)),
        "fp8 in blocks": (fp8_case(weight_block_size=[16, 16]), NO, floats(448, 16)),
        "fbgemm_fp8": (
            (
                float_formats.CASES["fbgemm_fp8"][0],
                lambda own: FbgemmFp8(
                    {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, own
                ),
            ),
            NO, floats(448),
        ),
        "modelopt FP8": (MODELOPT["FP8"], of_floats, static_floats(by_float)),
        "modelopt NVFP4": (
            MODELOPT["NVFP4"], {"input_scale": torch.tensor(by_four)}, nvfp4(by_four),
        ),
        "quark fp8 static": (
            quark_case(
                "fp8 of tensors", dtype="fp8_e4m3", qscheme="per_tensor", is_dynamic=False
            ),
            of_floats, static_floats(by_float),
        ),
        "quark fp8 per token": (
            quark_case("fp8 of rows", dtype="fp8_e4m3", qscheme="per_channel", is_dynamic=True),
            NO, floats(448),
        ),
        "quark int8 static": (
            quark_case("int8 of rows", dtype="int8", qscheme="per_tensor", is_dynamic=False),
            of_ints, static_integers(by_int),
        ),
        "quark mxfp4": (
            quark_case(
                "mxfp4", dtype="fp4", qscheme="per_group", group_size=32, is_dynamic=True
            ),
            NO, mxfp4,
        ),
        "torchao int8 by int8": (
            torchao_case(
                "int8 in rows", "Int8DynamicActivationInt8WeightConfig", granularity=[rows, rows]
            ),
            NO, integers(),
        ),
        "torchao int8 static": (
            torchao_case(
                "int8 in rows", "Int8StaticActivationInt8WeightConfig", granularity=[tensor, rows]
            ),
            stored_ints, static_integers(by_int),
        ),
        "torchao int8 by int3": (
            torchao_case("int3 with zeros", "Int8DynamicActivationIntxWeightConfig", **intx),
            NO, asymmetric,
        ),
        "torchao fp8": (
            torchao_case(
                "fp8 of tensors", "Float8DynamicActivationFloat8WeightConfig",
                granularity=[tensor, tensor],
            ),
            NO, floats(448),
        ),
        "torchao fp8 static": (
            torchao_case(
                "fp8 of tensors", "Float8StaticActivationFloat8WeightConfig",
                granularity=[tensor, tensor],
            ),
            stored_floats, static_floats(by_float),
        ),
        "torchao fp8 by int4": (
            torchao_case(
                "int4 in nibbles", "Float8DynamicActivationInt4WeightConfig",
                group_size=32, int4_packing_format={"_data": "PLAIN"},
            ),
            NO, floats(448),
        ),
        "torchao mxfp4": (
            torchao_case(
                "mxfp4", "MXDynamicActivationMXWeightConfig", block_size=32,
                weight_dtype=torchao.dtype("float4_e2m1fn_x2"),
                activation_dtype=torchao.dtype("float4_e2m1fn_x2"),
            ),
            NO, mxfp4,
        ),
        "torchao mxfp8 by mxfp4": (
            torchao_case(
                "mxfp4", "MXDynamicActivationMXWeightConfig", block_size=32,
                weight_dtype=torchao.dtype("float4_e2m1fn_x2"),
                activation_dtype=torchao.dtype("float8_e4m3fn"),
            ),
            NO, mxfp8,
        ),
    }  # fmt: skip


class Simulated:
    """Plain weights that multiply rounded inputs."""

    name = "simulated"

    def __init__(self, simulate: Round) -> None:
        self._simulate = simulate

    def linear(self, prefix: str) -> Any:
        del prefix
        method: Any = PlainLinear()
        exact = method.apply
        method.apply = lambda layer, x: exact(layer, self._simulate(x))
        return method

    def experts(self, prefix: str) -> Any:
        del prefix
        return SimulatedExperts(self._simulate)


class SimulatedExperts(PlainExperts):
    """One expert and token at a time."""

    def __init__(self, simulate: Round) -> None:
        self._simulate = simulate

    def apply(
        self, layer: nn.Module, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        out = torch.zeros_like(x)
        activation: Any = expert_activation(str(layer.activation))
        for row in range(len(x)):
            for share, expert in zip(shares[row], experts[row].tolist(), strict=True):
                inner = self._simulate(x[row : row + 1]) @ layer.gate_up[expert].T  # type: ignore[index]
                down = self._simulate(activation(inner)) @ layer.down[expert].T  # type: ignore[index]
                out[row] += share * down[0]
        return out


def with_activations(stored: Tensors, tensors: Tensors) -> Tensors:
    """Add tensors about activations to each quantized weight."""
    prefixes = {
        name.rpartition("_weight_scale" if "_weight_scale" in name else "weight_scale")[0]
        for name in stored
        if name.endswith(("weight_scale", "weight_scale_inv"))
    }
    return stored | {
        f"{own}{suffix}": value.clone() for own in prefixes for suffix, value in tensors.items()
    }
