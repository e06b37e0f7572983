"""Quark checkpoints: scheme by scheme, mixed by layer, with experts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.packed.method import make_method
from builtin_plugins.quant_methods.quark.method import Quark
from core.errors import ModelError
from tests.quant_methods.stored import (
    Tensors,
    Writer,
    assert_alike,
    checkpoint,
    is_linear,
    model,
    on_two_ranks,
    packed,
    scores,
)
from tests.quant_methods.test_floats import E2M1, eight_bits

LLAMA = "LlamaForCausalLM"


def weights(dtype: str, scheme: str, **more: Any) -> dict[str, Any]:
    return {
        "weight": {
            "dtype": dtype,
            "qscheme": scheme,
            "symmetric": True,
            "is_dynamic": False,
            **more,
        }
    }


def config(facts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"quant_method": "quark", "global_quant_config": facts, "exclude": ["lm_head"], **more}


def integers(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scales = weight.abs().amax(1) / 127
    codes = (weight / scales[:, None]).round().to(torch.int8)
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales[:, None]


def four_bits(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Two floats in a byte, powers of two for 32 of them as exponents."""
    groups = weight.view(len(weight), -1, 32)
    exponents = (groups.abs().amax(2, keepdim=True) / 6.0).log2().ceil()
    codes = ((groups / exponents.exp2()).abs().unsqueeze(-1) - E2M1).abs().argmin(-1)
    plain = E2M1[codes] * groups.sign() * exponents.exp2()
    codes = (codes + 8 * (groups < 0)).view(weight.shape)
    stored = (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8)
    return {
        "weight": stored,
        "weight_scale": (exponents[..., 0] + 127).to(torch.uint8),
    }, plain.view(weight.shape)


def six_bits(exponent_bits: int) -> Writer:
    """Four floats in three bytes, lowest bits first, powers of two for 32 of them as exponents."""
    fractions = 5 - exponent_bits
    bias = (1 << (exponent_bits - 1)) - 1
    codes = torch.arange(32)
    exponent = codes >> fractions
    fraction = (codes & ((1 << fractions) - 1)) / (1 << fractions)
    values = torch.where(
        exponent > 0, (1 + fraction) * 2.0 ** (exponent - bias), fraction * 2.0 ** (1 - bias)
    )

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        groups = weight.view(len(weight), -1, 32)
        exponents = (groups.abs().amax(2, keepdim=True) / values[-1]).log2().ceil()
        chosen = ((groups / exponents.exp2()).abs().unsqueeze(-1) - values).abs().argmin(-1)
        plain = values[chosen] * groups.sign() * exponents.exp2()
        fours = (chosen + 32 * (groups < 0)).view(len(weight), -1, 4)
        word = fours[..., 0] | fours[..., 1] << 6 | fours[..., 2] << 12 | fours[..., 3] << 18
        stored = (
            torch.stack([word & 255, word >> 8 & 255, word >> 16], -1).to(torch.uint8).flatten(1)
        )
        scales = (exponents[..., 0] + 127).to(torch.uint8)
        return {"weight": stored, "weight_scale": scales}, plain.view(weight.shape)

    return write


CASES: dict[str, tuple[Writer, dict[str, Any]]] = {
    "fp8 of tensors": (eight_bits(0, 0, view="scalar"), weights("fp8_e4m3", "per_tensor")),
    "fp8 of rows": (eight_bits(1, 0, view="flat"), weights("fp8_e4m3", "per_channel")),
    "int8 of rows": (integers, weights("int8", "per_channel")),
    "mxfp4": (four_bits, weights("fp4", "per_group", group_size=32)),
    "mxfp6 of 2 bits of exponent": (six_bits(2), weights("fp6_e2m3", "per_group", group_size=32)),
    "mxfp6 of 3 bits of exponent": (six_bits(3), weights("fp6_e3m2", "per_group", group_size=32)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("architecture", [LLAMA, "MixtralForCausalLM"])
def test_a_model_computes_what_its_numbers_stand_for(
    architecture: str, name: str, tmp_path: Path
) -> None:
    write, facts = CASES[name]
    stored, plain = packed(checkpoint(architecture, tmp_path), write)
    assert_alike(
        scores(architecture, tmp_path, stored, Quark(config(facts))),
        scores(architecture, tmp_path, plain),
    )


def test_layers_may_be_stored_unlike_and_some_are_plain(tmp_path: Path) -> None:
    tensors = checkpoint(LLAMA, tmp_path)
    (small, small_facts), (large, facts) = CASES["mxfp4"], CASES["fp8 of tensors"]
    small_ones = [name for name in tensors if name.endswith("down_proj.weight")]
    plain_ones = [
        name for name in tensors if "k_proj" in name or "layers.1.self_attn.o_proj" in name
    ]
    large_ones = [
        name for name in tensors if is_linear(name) and name not in (*small_ones, *plain_ones)
    ]
    stored, plain = packed(tensors, small, small_ones.__contains__)
    stored, plain = (
        packed(own, large, large_ones.__contains__)[at] for at, own in enumerate((stored, plain))
    )
    quant = Quark(
        config(
            facts,
            layer_quant_config={"*.down_proj": small_facts},
            exclude=["lm_head", "re:.*k_proj", "model.layers.1.self_attn.o_proj"],
        )
    )
    assert_alike(scores(LLAMA, tmp_path, stored, quant), scores(LLAMA, tmp_path, plain))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (
            weights("fp6_e2m3", "per_group", group_size=16),
            "weights of dtype 'fp6_e2m3', 'per_group', group_size 16",
        ),
        (weights("int8", "per_channel", symmetric=False), "symmetric False are not read"),
    ],
)
def test_what_is_not_read_is_refused_by_name(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Quark(config(facts))
    with pytest.raises(ModelError, match="weight_format is 'fake_quantized'"):
        Quark(config(CASES["mxfp4"][1], export={"weight_format": "fake_quantized"}))
    rotation = {
        "name": "rotation",
        "r1": True,
        "r2": True,
        "r3": True,
        "r4": True,
        "online_r1_rotation": False,
    }
    with pytest.raises(ModelError, match="algo_config has r4: activations are rotated"):
        Quark(config(CASES["mxfp4"][1], algo_config=[{"name": "smooth"}, rotation]))
    Quark(config(CASES["mxfp4"][1], algo_config=[{**rotation, "r4": False}]))


def test_a_setting_of_linear_layers_counts_before_that_of_all(tmp_path: Path) -> None:
    write, facts = CASES["int8 of rows"]
    stored, plain = packed(checkpoint(LLAMA, tmp_path), write)
    quant = Quark(config({"weight": None}, layer_type_quant_config={"Linear": facts}))
    assert_alike(scores(LLAMA, tmp_path, stored, quant), scores(LLAMA, tmp_path, plain))


IN_MEMORY = (
    (r"\.block_sparse_moe\.", ".mlp."),
    (r"(\.experts\.\d+)\.w1\.", r"\1.gate_proj."),
    (r"(\.experts\.\d+)\.w2\.", r"\1.down_proj."),
    (r"(\.experts\.\d+)\.w3\.", r"\1.up_proj."),
)


def in_memory(tensors: Tensors) -> Tensors:
    """Return tensors under the names that transformers 5 has in memory, which amd-quark 0.13
    writes.
    """
    found = {}
    for name, tensor in tensors.items():
        for pattern, there in IN_MEMORY:
            name = re.sub(pattern, there, name)
        found[name] = tensor
    return found


def fused(tensors: Tensors) -> Tensors:
    """Return the same with plain experts in two tensors, as amd-quark leaves them that was not told
    to take them apart.
    """
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        place = re.fullmatch(r"(.*\.experts)\.\d+\.(gate|up|down)_proj\.weight", name)
        if place is None:
            found[name] = tensor
        else:
            found.setdefault(place[1], {}).setdefault(place[2], []).append(tensor)
    for stem in [name for name, own in found.items() if isinstance(own, dict)]:
        own = {matrix: torch.stack(each) for matrix, each in found.pop(stem).items()}
        found |= {
            f"{stem}.gate_up_proj": torch.cat((own["gate"], own["up"]), 1),
            f"{stem}.down_proj": own["down"],
        }
    return found


def outside(name: str) -> bool:
    """Say whether it is the weight of a linear layer that is no expert's."""
    return is_linear(name) and ".experts." not in name


@pytest.mark.parametrize("name", ["fp8 of tensors", "mxfp4"])
@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "Qwen3MoeForCausalLM"])
def test_fused_experts_stay_plain_whatever_the_config_says_of_layers(
    architecture: str, name: str, tmp_path: Path
) -> None:
    write, facts = CASES[name]
    stored, plain = packed(checkpoint(architecture, tmp_path), write, outside)
    expected = scores(architecture, tmp_path, plain)
    given = fused(in_memory(stored))
    assert_alike(scores(architecture, tmp_path, given, Quark(config(facts))), expected)
    assert_alike(
        scores(architecture, tmp_path, given, Quark(config(facts)), plain=make_method()), expected
    )
    if name == "fp8 of tensors":
        assert_alike(
            on_two_ranks(architecture, tmp_path, given, lambda: Quark(config(facts))), expected
        )


@pytest.mark.parametrize("name", CASES)
def test_experts_taken_apart_have_names_of_memory(name: str, tmp_path: Path) -> None:
    write, facts = CASES[name]
    stored, plain = packed(
        checkpoint("MixtralForCausalLM", tmp_path),
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
    found = scores("MixtralForCausalLM", tmp_path, in_memory(stored), quant)
    assert_alike(found, scores("MixtralForCausalLM", tmp_path, plain))


def test_experts_that_came_one_by_one_are_not_updated_by_a_plain_tensor_of_all(
    tmp_path: Path,
) -> None:
    write, facts = CASES["fp8 of tensors"]
    tensors = checkpoint("Qwen3MoeForCausalLM", tmp_path)
    stored, _ = packed(tensors, write)
    decoder = model("Qwen3MoeForCausalLM", tmp_path, Quark(config(facts)), plain=make_method())
    decoder.load_weights(stored.items())
    with pytest.raises(ModelError, match="single ones came before"):
        decoder.load_weights(fused(packed(tensors, write, outside)[0]).items())


GPT_OSS = "GptOssForCausalLM"


def apart(tensors: Tensors) -> Tensors:
    """Return gpt-oss's experts as the tool takes them apart: rows of gate and up in turn, a bias
    for each.
    """
    found: Tensors = {}
    for name, tensor in tensors.items():
        place, _, last = name.partition(".experts.")
        if not last:
            found[name] = tensor
            continue
        kind = "bias" if last.endswith("_bias") else "weight"
        for index, own in enumerate(tensor):
            whole = f"{place}.experts.{index}.{last.removesuffix('_bias')}.{kind}"
            found[whole] = own.T.contiguous() if kind == "weight" else own
    return found


def together(tensors: Tensors) -> Tensors:
    """Turn that back."""
    experts: dict[str, dict[int, torch.Tensor]] = {}
    found: Tensors = {}
    for name, tensor in tensors.items():
        place, _, last = name.partition(".experts.")
        if not last:
            found[name] = tensor
            continue
        index, matrix, kind = last.split(".")
        whole = f"{place}.experts.{matrix}{'_bias' if kind == 'bias' else ''}"
        experts.setdefault(whole, {})[int(index)] = tensor.T if kind == "weight" else tensor
    return found | {
        name: torch.stack([own[index] for index in range(len(own))])
        for name, own in experts.items()
    }


@pytest.mark.parametrize("name", ["fp8 of rows", "mxfp4"])
def test_gpt_oss_experts_may_be_taken_apart(name: str, tmp_path: Path) -> None:
    write, facts = CASES[name]
    tensors = checkpoint(GPT_OSS, tmp_path, hidden_size=128, intermediate_size=64, head_dim=32)
    left_out = "model.layers.1.mlp.experts.0.down_proj"
    stored, plain = packed(
        apart(tensors), write, lambda name: is_linear(name) and not name.startswith(left_out)
    )
    expected = scores(GPT_OSS, tmp_path, together(plain))
    settings = config(facts, exclude=["lm_head", left_out])
    assert_alike(scores(GPT_OSS, tmp_path, stored, Quark(settings)), expected)
    assert_alike(scores(GPT_OSS, tmp_path, stored, Quark(settings), plain=make_method()), expected)
    assert_alike(on_two_ranks(GPT_OSS, tmp_path, stored, lambda: Quark(settings)), expected)


def test_gpt_oss_experts_may_be_apart_and_plain(tmp_path: Path) -> None:
    tensors = checkpoint(GPT_OSS, tmp_path)
    expected = scores(GPT_OSS, tmp_path, tensors)
    assert torch.equal(scores(GPT_OSS, tmp_path, apart(tensors)), expected)
    assert torch.equal(scores(GPT_OSS, tmp_path, together(apart(tensors))), expected)


@pytest.mark.parametrize("part", ["2.gate_up_proj.bias", "1.down_proj.weight"])
def test_gpt_oss_experts_apart_come_whole(part: str, tmp_path: Path) -> None:
    stored = apart(checkpoint(GPT_OSS, tmp_path))
    del stored[f"model.layers.1.mlp.experts.{part}"]
    with pytest.raises(ModelError, match=rf"1 missing tensors: model.layers.1.mlp.experts.{part}"):
        scores(GPT_OSS, tmp_path, stored)
