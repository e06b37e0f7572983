"""Triton kernels multiply quantized weights in their stored format; run by the interpreter."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from core_kernels.triton import int8_mm, scaled_mm
from core_kernels.triton.block_scaled import BlockScaledOps
from core_kernels.triton.int8_mm import ScaledIntOps
from core_kernels.triton.nvfp4 import NvFp4Ops
from core_kernels.triton.quantized import FloatOps, QuantizedOps
from core_kernels.triton.quantized_rows import round_rows
from core_kernels.triton.scaled_mm import ScaledFloatOps

from benchmarks.gpu.counting_gpu import LaunchCounter
from builtin_plugins.models import llama
from builtin_plugins.op_impls.triton import ops as triton_ops
from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from builtin_plugins.quant_methods.cpu_packed.floats import PackedFloatExperts, PackedFloats
from builtin_plugins.quant_methods.cpu_packed.ints import PackedIntExperts, PackedInts
from builtin_plugins.quant_methods.rtn.method import Int4, Int8
from builtin_plugins.quant_methods.stored.backends import DequantizedBackend, select_backend
from builtin_plugins.quant_methods.stored.layouts import LayoutSpec
from builtin_plugins.quant_methods.triton.method import (
    BlockScaledWeights,
    Float8Weights,
    TritonWeights,
)
from builtin_plugins.quant_methods.triton.plugin import engine_quant_methods
from core.config import EngineConfig
from core.model_spec.parallel import ParallelGroup
from core.models.layers.decoder import Decoder
from core.models.layers.linear import Linear, Slice
from core.models.layers.weights import WeightMap
from core.models.ops.table import reference_ops
from core.testing.one_sequence import Session, plain_context, read_config
from tests.builtin_plugins.quant_methods.writers import activations as activation_writers
from tests.builtin_plugins.quant_methods.writers import compressed_tensors as compressed_writers
from tests.builtin_plugins.quant_methods.writers import float_formats as float_formats_writers
from tests.builtin_plugins.quant_methods.writers import mxfp4 as mxfp4_writers
from tests.builtin_plugins.quant_methods.writers.kernel_formats import CASES, LLAMA, gptq_case
from tests.builtin_plugins.quant_methods.writers.model import (
    assert_close,
    logprobs,
    plain_tensors,
    quantize,
    whole,
)
from tests.kernels.triton.interpreted_scales import read_e4m3_scales


def of_model(architecture: str, name: str, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of a quantized model, and with its dequantized weights."""
    write, quant = CASES[name]
    stored, plain = quantize(plain_tensors(architecture, folder), write)
    return logprobs(architecture, folder, stored, quant(), plain=TritonWeights()), logprobs(
        architecture, folder, plain
    )


def test_model_matches_dequantized_weights(tmp_path: Path) -> None:
    assert_close(*of_model(LLAMA, "gptq, 4 bits with zeros and order", tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("architecture", [LLAMA, "Qwen3MoeForCausalLM"])
def test_all_formats_and_experts_match_dequantized_weights(
    architecture: str, name: str, tmp_path: Path
) -> None:
    assert_close(*of_model(architecture, name, tmp_path))


def backends(quant: Any) -> list[Any]:
    """Return the backends of a layer and of experts, and the layer's kernels."""
    plain = TritonWeights()
    stored = quant.format_of("model.layers.0.a")
    found: list[Any] = [
        select_backend(stored, lambda made=made: made("x"), whole(8, 256))
        for made in (plain.linear, plain.experts)
    ]
    return [*map(type, found), type(found[0]._ops)]


def test_backend_selection() -> None:
    assert backends(CASES["awq"][1]()) == [PackedInts, PackedIntExperts, QuantizedOps]
    assert backends(CASES["gptq, 4 bits with order"][1]()) == [
        PackedInts,
        DequantizedBackend,
        QuantizedOps,
    ]
    assert backends(gptq_case(8, 12, sym=False)[1]()) == [
        PackedInts,
        PackedIntExperts,
        QuantizedOps,
    ]
    assert backends(float_formats_writers.fp8()) == [PackedFloats, PackedFloatExperts, FloatOps]
    assert backends(float_formats_writers.modelopt("NVFP4")) == [
        PackedFloats,
        PackedFloatExperts,
        QuantizedOps,
    ]


def test_activations_are_rounded_only_for_w8a8_checkpoints() -> None:
    method: Any = Float8Weights().linear("x")
    for x_bits, ops in ((16, FloatOps), (8, ScaledFloatOps)):
        assert (
            type(method.backend_for(LayoutSpec(8, 128, is_float=True, activation_bits=x_bits))._ops)
            is ops
        )
    by_row, by_block = (
        float_formats_writers.fp8(**more).format_of("a").layout_spec
        for more in ({}, {"weight_block_size": [128, 128]})
    )
    assert (by_row.activation_bits, by_block.activation_bits) == (8, 8)


@pytest.mark.parametrize("kind", ["float8", "int8"])
def test_inputs_are_quantized_where_they_are_computed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only attention outputs take a launch of their own; logits are equal bit by bit."""
    module: Any = scaled_mm
    ops: Any = ScaledFloatOps
    quant: Any
    write, quant = float_formats_writers.CASES["fp8 of tensors"]
    if kind == "int8":
        module = int8_mm
        ops = ScaledIntOps
        layout, facts = compressed_writers.SCHEMES["int8 in rows"]
        write = compressed_writers.library_writer(layout, facts)
        settings = compressed_writers.config(layout, facts)
        settings["config_groups"]["group_0"]["input_activations"] = {
            "num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True
        }  # fmt: skip
        quant = partial(CompressedTensors, settings)
    stored, _ = quantize(plain_tensors(LLAMA, tmp_path), write)
    own_ops = {name: getattr(triton_ops, name) for name in ("rms_norm", "silu_and_mul")}
    table = replace(reference_ops(), add_rms_norm=triton_ops.add_rms_norm, **own_ops)
    rounded: list[torch.Tensor] = []

    def counted(x: torch.Tensor, *how: Any) -> Any:
        rounded.append(x)
        return round_rows(x, *how)

    def found() -> torch.Tensor:
        rounded.clear()
        context = replace(plain_context(dtype=torch.bfloat16), quant=quant(), ops=table)
        spec = llama.spec(read_config(tmp_path))
        decoder = Decoder(spec, replace(context, plain=Float8Weights()))
        decoder.load_weights(stored.items())
        return Session(decoder).step([*range(100, 105)])

    monkeypatch.setattr(module, "round_rows", counted)
    fused = found()
    layers = len(llama.spec(read_config(tmp_path)).layers)
    assert len(rounded) == layers
    monkeypatch.setattr(ops, "inputs", lambda *unused: None)
    assert torch.equal(fused, found())
    assert len(rounded) == 4 * layers


def test_layers_with_adapters_get_plain_inputs() -> None:
    context = replace(plain_context(), plain=TritonWeights())
    layer = Linear(context, WeightMap(), "layer", 8, [Slice("out", 5)])
    kernels = object()
    vars(layer.method)["quantized_inputs"] = lambda layer: kernels
    assert layer.input_kernels() is kernels
    layer.adapter = lambda layer, x, out, tokens=None: out
    assert layer.input_kernels() is None


def test_bias_is_added_by_the_product_unless_ranks_are_summed() -> None:
    context = replace(plain_context(), plain=TritonWeights())
    layer = Linear(context, WeightMap(), "layer", 8, [Slice("out", 5)], bias=True)
    weight, bias = (torch.randn(each.shape) for each in (layer.weight, layer.bias))
    layer.load_state_dict({"weight": weight, "bias": bias})
    x = torch.randn(3, 8)
    with torch.inference_mode(), LaunchCounter() as counter:
        found = layer(x)
    assert [launch.name for launch in counter.launches] == ["addmm"]
    torch.testing.assert_close(found, x @ weight.T + bias)
    two = replace(context, group=ParallelGroup(2, 0))
    split = Linear(two, WeightMap(), "layer", 8, [Slice("out", 5)], split="columns", bias=True)
    assert split._apply_with_bias is None


def test_device_facts_select_the_method() -> None:
    first, second, third = engine_quant_methods()
    assert first.when == {"triton": [True]}
    assert second.when == {"triton": [True], "float8": [True], "dtype": ["bfloat16"]}
    assert third.when["capability"] == range(100, 200)
    assert third.priority > second.priority > first.priority


def test_integers_with_integer_inputs_are_multiplied_as_integers() -> None:
    linear = TritonWeights().linear("layer")
    for activation_bits, group, ops in (
        (8, -1, ScaledIntOps),
        (16, -1, QuantizedOps),
        (8, 128, QuantizedOps),
    ):
        spec = LayoutSpec(8, group, activation_bits=activation_bits)
        assert type(linear.backend_for(spec)._ops) is ops  # type: ignore[attr-defined]


def test_mxfp4_with_mxfp4_inputs_is_multiplied_by_blocks_where_the_device_can() -> None:
    spec = LayoutSpec(4, 32, is_float=True, has_e8m0_scales=True, activation_bits=4)
    for weights, own, ops in (
        (BlockScaledWeights(), spec, BlockScaledOps),
        (Float8Weights(), spec, QuantizedOps),
        (BlockScaledWeights(), replace(spec, activation_bits=16), QuantizedOps),
        (BlockScaledWeights(), replace(spec, group_size=16), QuantizedOps),
    ):
        assert type(weights.linear("layer").backend_for(own)._ops) is ops  # type: ignore[attr-defined]


def test_nvfp4_with_nvfp4_inputs_is_multiplied_by_blocks_where_the_device_can() -> None:
    stored: Any = float_formats_writers.modelopt("NVFP4").format_of("a")
    spec: LayoutSpec = stored.layout_spec
    assert (spec.activation_bits, spec.group_size) == (4, 16)
    for weights, own, ops in (
        (BlockScaledWeights(), spec, NvFp4Ops),
        (Float8Weights(), spec, QuantizedOps),
        (BlockScaledWeights(), replace(spec, activation_bits=16), QuantizedOps),
        (BlockScaledWeights(), replace(spec, has_global_scales=False), QuantizedOps),
    ):
        method: Any = weights.linear("layer")
        backend = method.backend_for(own)
        assert type(backend._ops) is ops
        assert backend.rounds_inputs() is (ops is NvFp4Ops)


def test_nvfp4_layers_round_their_inputs_as_the_checkpoint_specifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_e4m3_scales(monkeypatch)
    write, make = activation_writers.MODELOPT["NVFP4"]
    stored, _ = quantize(plain_tensors(LLAMA, tmp_path), write)

    def layers(plain: Any, mode: str) -> dict[str, Linear]:
        quant = make(activation_writers.engine(mode))
        context = replace(plain_context(dtype=torch.bfloat16), quant=quant, plain=plain)
        decoder: Any = Decoder(llama.spec(read_config(tmp_path)), context)
        decoder.load_weights(stored.items())
        return {
            name: module
            for name, module in decoder.layers[0].named_modules()
            if isinstance(module, Linear)
        }

    by_formula = layers(TritonWeights(), "on")
    for name, layer in layers(BlockScaledWeights(), "auto").items():
        x = torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(0))
        found, expected = (each(x.bfloat16()).float() for each in (layer, by_formula[name]))
        assert (found - expected).norm() <= 0.01 * expected.norm(), name


@pytest.mark.slow
def test_mxfp4_experts_match_dequantized_weights(tmp_path: Path) -> None:
    stored, plain = mxfp4_writers.quantize(plain_tensors(mxfp4_writers.GPT_OSS, tmp_path))
    found = logprobs(
        mxfp4_writers.GPT_OSS, tmp_path, stored, mxfp4_writers.method(), plain=TritonWeights()
    )
    assert_close(found, logprobs(mxfp4_writers.GPT_OSS, tmp_path, plain))


@pytest.mark.parametrize("method", [pytest.param(Int8, marks=pytest.mark.slow), Int4])
def test_rtn_uses_device_kernels(method: Any, tmp_path: Path) -> None:
    tensors = plain_tensors(LLAMA, tmp_path)
    quant = method(None, EngineConfig())
    found = logprobs(LLAMA, tmp_path, tensors, quant, plain=TritonWeights())
    assert "_ops" not in vars(quant)  # the CPU's were not covered for
    torch.testing.assert_close(
        found, logprobs(LLAMA, tmp_path, tensors, method(None, EngineConfig())), atol=0.05, rtol=0
    )
