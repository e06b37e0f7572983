"""Quark checkpoints: each scheme, mixed layers, and experts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.cpu_packed.method import make_method
from builtin_plugins.quant_methods.quark.method import Quark
from core.errors import ModelError
from tests.builtin_plugins.quant_methods.writers.model import (
    CheckModel,
    Tensors,
    assert_close,
    build_model,
    is_linear,
    logprobs,
    logprobs_tp2,
    plain_tensors,
    quantize,
)
from tests.builtin_plugins.quant_methods.writers.quark import CASES, config, weights

LLAMA = "LlamaForCausalLM"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("architecture", [LLAMA, "MixtralForCausalLM"])
def test_model_matches_dequantized_weights(
    architecture: str, name: str, check_model: CheckModel
) -> None:
    write, facts = CASES[name]
    check_model(write, lambda: Quark(config(facts)), architecture)


def test_mixed_formats_and_excluded_layers_match(tmp_path: Path) -> None:
    tensors = plain_tensors(LLAMA, tmp_path)
    small, small_facts = CASES["mxfp4"]
    large, facts = CASES["fp8 of tensors"]
    small_ones = [name for name in tensors if name.endswith("down_proj.weight")]
    plain_ones = [
        name for name in tensors if "k_proj" in name or "layers.1.self_attn.o_proj" in name
    ]
    large_ones = [
        name for name in tensors if is_linear(name) and name not in (*small_ones, *plain_ones)
    ]
    stored, plain = quantize(tensors, small, small_ones.__contains__)
    stored, plain = (
        quantize(own, large, large_ones.__contains__)[at] for at, own in enumerate((stored, plain))
    )
    quant = Quark(
        config(
            facts,
            layer_quant_config={"*.down_proj": small_facts},
            exclude=["lm_head", "re:.*k_proj", "model.layers.1.self_attn.o_proj"],
        )
    )
    assert_close(logprobs(LLAMA, tmp_path, stored, quant), logprobs(LLAMA, tmp_path, plain))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (
            weights("fp6_e2m3", "per_group", group_size=16),
            "got weights of dtype 'fp6_e2m3', 'per_group', group_size 16",
        ),
        (weights("int8", "per_channel", symmetric=False), "symmetric False; expected"),
    ],
)
def test_unsupported_config_is_rejected(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Quark(config(facts))
    with pytest.raises(ModelError, match="weight_format: got 'fake_quantized'"):
        Quark(config(CASES["mxfp4"][1], export={"weight_format": "fake_quantized"}))
    rotation = {
        "name": "rotation",
        "r1": True,
        "r2": True,
        "r3": True,
        "r4": True,
        "online_r1_rotation": False,
    }
    with pytest.raises(ModelError, match="algo_config: got r4; online activation rotations"):
        Quark(config(CASES["mxfp4"][1], algo_config=[{"name": "smooth"}, rotation]))
    Quark(config(CASES["mxfp4"][1], algo_config=[{**rotation, "r4": False}]))


def test_layer_type_config_precedes_global_config(check_model: CheckModel) -> None:
    write, facts = CASES["int8 of rows"]
    settings = config({"weight": None}, layer_type_quant_config={"Linear": facts})
    check_model(write, lambda: Quark(settings))


IN_MEMORY = (
    (r"\.block_sparse_moe\.", ".mlp."),
    (r"(\.experts\.\d+)\.w1\.", r"\1.gate_proj."),
    (r"(\.experts\.\d+)\.w2\.", r"\1.down_proj."),
    (r"(\.experts\.\d+)\.w3\.", r"\1.up_proj."),
)


def in_memory(tensors: Tensors) -> Tensors:
    """Return tensors under transformers 5's names in memory, which amd-quark 0.13 writes."""
    found = {}
    for name, tensor in tensors.items():
        for pattern, there in IN_MEMORY:
            name = re.sub(pattern, there, name)
        found[name] = tensor
    return found


def fused(tensors: Tensors) -> Tensors:
    """Return the same with plain experts in two tensors, as amd-quark leaves them by default."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        module = re.fullmatch(r"(.*\.experts)\.\d+\.(gate|up|down)_proj\.weight", name)
        if module is None:
            found[name] = tensor
        else:
            found.setdefault(module[1], {}).setdefault(module[2], []).append(tensor)
    for stem in [name for name, own in found.items() if isinstance(own, dict)]:
        own = {matrix: torch.stack(each) for matrix, each in found.pop(stem).items()}
        found |= {
            f"{stem}.gate_up_proj": torch.cat((own["gate"], own["up"]), 1),
            f"{stem}.down_proj": own["down"],
        }
    return found


def outside(name: str) -> bool:
    """Return whether it is a linear weight outside experts."""
    return is_linear(name) and ".experts." not in name


@pytest.mark.parametrize("name", ["fp8 of tensors", "mxfp4"])
@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "Qwen3MoeForCausalLM"])
def test_stacked_experts_stay_plain(architecture: str, name: str, tmp_path: Path) -> None:
    write, facts = CASES[name]
    stored, plain = quantize(plain_tensors(architecture, tmp_path), write, outside)
    expected = logprobs(architecture, tmp_path, plain)
    given = fused(in_memory(stored))
    assert_close(logprobs(architecture, tmp_path, given, Quark(config(facts))), expected)
    assert_close(
        logprobs(architecture, tmp_path, given, Quark(config(facts)), plain=make_method()), expected
    )
    if name == "fp8 of tensors":
        assert_close(
            logprobs_tp2(architecture, tmp_path, given, lambda: Quark(config(facts))), expected
        )


@pytest.mark.parametrize("name", CASES)
def test_unstacked_experts_with_transformers_names(name: str, tmp_path: Path) -> None:
    write, facts = CASES[name]
    stored, plain = quantize(
        plain_tensors("MixtralForCausalLM", tmp_path),
        write,
        lambda name: (
            is_linear(name)
            and not name.endswith("layers.1.block_sparse_moe.experts.0.w2.weight")
            and ".0.self_attn.q" not in name
        ),
    )
    layers = {"*.experts.*.gate_proj": facts}
    exclude = ["lm_head", "*layers.0.self_attn.q_proj", "re:.*layers.1.mlp.experts.0.down_proj"]
    quant = Quark(config(facts, layer_quant_config=layers, exclude=exclude))
    found = logprobs("MixtralForCausalLM", tmp_path, in_memory(stored), quant)
    assert_close(found, logprobs("MixtralForCausalLM", tmp_path, plain))


def test_stacked_update_of_per_expert_weights_is_rejected(
    tmp_path: Path,
) -> None:
    write, facts = CASES["fp8 of tensors"]
    tensors = plain_tensors("Qwen3MoeForCausalLM", tmp_path)
    stored, _ = quantize(tensors, write)
    decoder = build_model(
        "Qwen3MoeForCausalLM", tmp_path, Quark(config(facts)), plain=make_method()
    )
    decoder.load_weights(stored.items())
    with pytest.raises(ModelError, match="both per expert"):
        decoder.load_weights(fused(quantize(tensors, write, outside)[0]).items())


GPT_OSS = "GptOssForCausalLM"


def apart(tensors: Tensors) -> Tensors:
    """Return gpt-oss's experts unstacked: interleaved gate and up rows, a bias each."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        module, _, last = name.partition(".experts.")
        if not last:
            found[name] = tensor
            continue
        kind = "bias" if last.endswith("_bias") else "weight"
        for index, own in enumerate(tensor):
            whole = f"{module}.experts.{index}.{last.removesuffix('_bias')}.{kind}"
            found[whole] = own.T.contiguous() if kind == "weight" else own
    return found


def together(tensors: Tensors) -> Tensors:
    """Return the experts stacked again."""
    experts: dict[str, dict[int, torch.Tensor]] = {}
    found: Tensors = {}
    for name, tensor in tensors.items():
        module, _, last = name.partition(".experts.")
        if not last:
            found[name] = tensor
            continue
        index, matrix, kind = last.split(".")
        whole = f"{module}.experts.{matrix}{'_bias' if kind == 'bias' else ''}"
        experts.setdefault(whole, {})[int(index)] = tensor.T if kind == "weight" else tensor
    return found | {
        name: torch.stack([own[index] for index in range(len(own))])
        for name, own in experts.items()
    }


@pytest.mark.parametrize("name", ["fp8 of rows", "mxfp4"])
def test_gpt_oss_unstacked_experts_match(name: str, tmp_path: Path) -> None:
    write, facts = CASES[name]
    tensors = plain_tensors(GPT_OSS, tmp_path, hidden_size=128, intermediate_size=64, head_dim=32)
    excluded = "model.layers.1.mlp.experts.0.down_proj"
    stored, plain = quantize(
        apart(tensors), write, lambda name: is_linear(name) and not name.startswith(excluded)
    )
    expected = logprobs(GPT_OSS, tmp_path, together(plain))
    settings = config(facts, exclude=["lm_head", excluded])
    assert_close(logprobs(GPT_OSS, tmp_path, stored, Quark(settings)), expected)
    assert_close(
        logprobs(GPT_OSS, tmp_path, stored, Quark(settings), plain=make_method()), expected
    )
    assert_close(logprobs_tp2(GPT_OSS, tmp_path, stored, lambda: Quark(settings)), expected)


def test_gpt_oss_unstacked_plain_experts_match(tmp_path: Path) -> None:
    tensors = plain_tensors(GPT_OSS, tmp_path)
    expected = logprobs(GPT_OSS, tmp_path, tensors)
    assert torch.equal(logprobs(GPT_OSS, tmp_path, apart(tensors)), expected)
    assert torch.equal(logprobs(GPT_OSS, tmp_path, together(apart(tensors))), expected)


@pytest.mark.parametrize("part", ["2.gate_up_proj.bias", "1.down_proj.weight"])
def test_gpt_oss_missing_unstacked_tensor_is_reported(part: str, tmp_path: Path) -> None:
    stored = apart(plain_tensors(GPT_OSS, tmp_path))
    del stored[f"model.layers.1.mlp.experts.{part}"]
    with pytest.raises(ModelError, match=rf"1 missing tensors: model.layers.1.mlp.experts.{part}"):
        logprobs(GPT_OSS, tmp_path, stored)
