"""Quark checkpoints: scheme by scheme, mixed by layer, with experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.quark.method import Quark
from core.errors import ModelError
from tests.quant_methods.stored import Tensors, Writer, assert_alike, checkpoint, is_linear, packed, scores
from tests.quant_methods.test_floats import E2M1, eight_bits

LLAMA = "LlamaForCausalLM"


def weights(dtype: str, scheme: str, **more: Any) -> dict[str, Any]:
    return {"weight": {"dtype": dtype, "qscheme": scheme, "symmetric": True, "is_dynamic": False, **more}}


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
    return {"weight": stored, "weight_scale": (exponents[..., 0] + 127).to(torch.uint8)}, plain.view(weight.shape)


def six_bits(exponent_bits: int) -> Writer:
    """Four floats in three bytes, lowest bits first, powers of two for 32 of them as exponents."""
    fractions, bias = 5 - exponent_bits, (1 << (exponent_bits - 1)) - 1
    codes = torch.arange(32)
    exponent, fraction = codes >> fractions, (codes & ((1 << fractions) - 1)) / (1 << fractions)
    values = torch.where(exponent > 0, (1 + fraction) * 2.0 ** (exponent - bias), fraction * 2.0 ** (1 - bias))

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        groups = weight.view(len(weight), -1, 32)
        exponents = (groups.abs().amax(2, keepdim=True) / values[-1]).log2().ceil()
        chosen = ((groups / exponents.exp2()).abs().unsqueeze(-1) - values).abs().argmin(-1)
        plain = values[chosen] * groups.sign() * exponents.exp2()
        fours = (chosen + 32 * (groups < 0)).view(len(weight), -1, 4)
        word = fours[..., 0] | fours[..., 1] << 6 | fours[..., 2] << 12 | fours[..., 3] << 18
        stored = torch.stack([word & 255, word >> 8 & 255, word >> 16], -1).to(torch.uint8).flatten(1)
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
def test_a_model_computes_what_its_numbers_stand_for(architecture: str, name: str, tmp_path: Path) -> None:
    write, facts = CASES[name]
    stored, plain = packed(checkpoint(architecture, tmp_path), write)
    assert_alike(scores(architecture, tmp_path, stored, Quark(config(facts))), scores(architecture, tmp_path, plain))


def test_layers_may_be_stored_unlike_and_some_are_plain(tmp_path: Path) -> None:
    tensors = checkpoint(LLAMA, tmp_path)
    (small, small_facts), (large, facts) = CASES["mxfp4"], CASES["fp8 of tensors"]
    small_ones = [name for name in tensors if name.endswith("down_proj.weight")]
    plain_ones = [name for name in tensors if "k_proj" in name or "layers.1.self_attn.o_proj" in name]
    large_ones = [name for name in tensors if is_linear(name) and name not in (*small_ones, *plain_ones)]
    stored, plain = packed(tensors, small, small_ones.__contains__)
    stored, plain = (packed(own, large, large_ones.__contains__)[at] for at, own in enumerate((stored, plain)))
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
        (weights("fp6_e2m3", "per_group", group_size=16), "weights of dtype 'fp6_e2m3', 'per_group', group_size 16"),
        (weights("int8", "per_channel", symmetric=False), "symmetric False are not read"),
    ],
)
def test_what_is_not_read_is_refused_by_name(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Quark(config(facts))
    with pytest.raises(ModelError, match="weight_format is 'fake_quantized'"):
        Quark(config(CASES["mxfp4"][1], export={"weight_format": "fake_quantized"}))
