"""torchao checkpoints compute the same as their dequantized tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.torchao.method import TorchAo
from core.errors import ModelError
from tests.builtin_plugins.quant_methods.writers.model import (
    CheckModel,
    Tensors,
    assert_close,
    is_linear,
    logprobs,
    plain_tensors,
    quantize,
)
from tests.builtin_plugins.quant_methods.writers.torchao import CASES, Facts, config, kind

LLAMA = "LlamaForCausalLM"


@pytest.mark.parametrize("name", CASES)
def test_model_matches_dequantized_weights(name: str, check_model: CheckModel) -> None:
    write, facts = CASES[name]
    settings = config(facts)
    check_model(write, lambda: TorchAo(settings), ranks=(1, 2), intermediate_size=128)


def made() -> dict[str, Callable[[], Any]]:
    """Return the configs that the library supports on a CPU."""
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
def test_library_checkpoint_is_read(name: str, tmp_path: Path) -> None:
    ao = pytest.importorskip("torchao.quantization")
    from torchao.core.config import config_to_dict
    from torchao.prototype.safetensors.safetensors_support import (
        flatten_tensor_state_dict,
    )

    facts = made()[name]()

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        module = torch.nn.Sequential(torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False))
        module[0].weight.data = weight.bfloat16() if "fp" in name else weight
        ao.quantize_(module, facts)
        tensors, _ = flatten_tensor_state_dict(module.state_dict())
        own = module[0].weight
        plain = own.dequantize(torch.float32) if "fp" in name else own.dequantize()
        return {key.removeprefix("0."): tensor for key, tensor in tensors.items()}, plain.float()

    stored, plain = quantize(plain_tensors(LLAMA, tmp_path, intermediate_size=128), write)
    quant = TorchAo(config(config_to_dict(facts)))
    assert_close(logprobs(LLAMA, tmp_path, stored, quant), logprobs(LLAMA, tmp_path, plain))


def test_fqn_to_config_per_module(tmp_path: Path) -> None:
    tensors = plain_tensors(LLAMA, tmp_path)
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
        stored = quantize(stored, CASES[name][0], chosen)[0]
        plain = quantize(plain, CASES[name][0], chosen)[1]
    names = ["model.layers.0.self_attn.q_proj", r"re:.*\.up_proj", "_default"]
    by_name: Facts = {own: CASES[name][1] for own, name in zip(names, which, strict=True)}
    quant = TorchAo(config(kind("FqnToConfig", fqn_to_config={r"re:.*\.k_proj": None, **by_name})))
    assert_close(logprobs(LLAMA, tmp_path, stored, quant), logprobs(LLAMA, tmp_path, plain))


def test_embedding_and_head_quantized_with_excluded_modules(check_model: CheckModel) -> None:
    def which(name: str) -> bool:
        ends = ("lm_head.weight", "embed_tokens.weight")
        return (is_linear(name) and "v_proj" not in name) or name.endswith(ends)

    write, facts = CASES["int8 in rows"]
    included = {"include_input_output_embeddings": True, "modules_to_not_convert": ["v_proj"]}
    check_model(write, lambda: TorchAo(config(facts, **included)), which=which)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"quant_type": "int8_weight_only"},
            "quant_type: got 'int8_weight_only'; expected an object",
        ),
        (
            {"quant_type": {"default": kind("GemliteUIntXWeightOnlyConfig")}},
            "quant_type: got .*Gemlite.*; expected one of Int8",
        ),
        (
            {
                "quant_type": {
                    "default": kind(
                        "Int4WeightOnlyConfig", int4_packing_format={"_data": "PRESHUFFLED"}
                    )
                }
            },
            "PRESHUFFLED.*; expected",
        ),
        (
            {"quant_type": {"default": kind("Int8WeightOnlyConfig", granularity=kind("PerToken"))}},
            "granularity: got .*PerToken",
        ),
    ],
)
def test_unsupported_config_is_rejected(change: Facts, message: str) -> None:
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
            "has zero points, but the quantization config",
        ),
    ],
)
def test_broken_checkpoint_raises_one_error(
    name: str, tensor: torch.Tensor, message: str, tmp_path: Path
) -> None:
    write, facts = CASES["int8 in rows"]
    stored, _ = quantize(plain_tensors(LLAMA, tmp_path), write)
    stored[f"model.layers.0.mlp.up_proj.{name}"] = tensor
    with pytest.raises(ModelError, match=message):
        logprobs(LLAMA, tmp_path, stored, TorchAo(config(facts)))
