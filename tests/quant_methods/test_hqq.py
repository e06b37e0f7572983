"""HQQ checkpoints give what their dequantized weights give: packed here after the published layout,
and by the library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.hqq.method import Hqq
from core.errors import ModelError
from tests.quant_methods.stored import (
    Tensors,
    Writer,
    assert_alike,
    checkpoint,
    is_linear,
    on_two_ranks,
    packed,
    scores,
)

LLAMA = "LlamaForCausalLM"


def settings(bits: int, group: int | None, axis: int) -> dict[str, Any]:
    weights = {
        "nbits": bits,
        "channel_wise": True,
        "group_size": group,
        "optimize": True,
        "axis": axis,
    }
    return {"weight_quant_params": weights, "scale_quant_params": None, "zero_quant_params": None}


def config(bits: int = 4, group: int | None = 16, axis: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "hqq",
        "quant_config": settings(bits, group, axis),
        "skip_modules": ["lm_head"],
        **more,
    }


def writer(
    bits: int = 4, group: int | None = 16, axis: int = 1, *, as_floats: bool = False
) -> Writer:
    """Groups are the rows of a reshaped weight, or its columns; parts of it share the bits of an
    element.
    """

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        size = group or weight.shape[1 - (axis == 0)]
        lines = weight.reshape(-1, size) if axis == 1 else weight.reshape(size, -1)
        least = lines.amin(axis, keepdim=True)
        most = lines.amax(axis, keepdim=True)
        scales = ((most - least) / (2**bits - 1)).half()
        zeros = (-least / scales.float()).half()
        codes = (lines / scales.float() + zeros.float()).round().clamp(0, 2**bits - 1)
        plain = ((codes - zeros.float()) * scales.float()).view(weight.shape)
        per = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}[bits]
        filled = torch.nn.functional.pad(codes.int(), (0, 0, 0, -len(codes) % per))
        stored = torch.zeros(len(filled) // per, filled.shape[1], dtype=torch.int32)
        for place, part in enumerate(filled.chunk(per)):
            stored |= part << bits * (per - 1 - place)
        stored = stored if bits == 3 else stored.to(torch.uint8)
        stated = {
            "nbits": torch.tensor(bits),
            "group_size": torch.tensor(size),
            "axis": torch.tensor(axis),
        }
        stated |= {
            "shape": torch.tensor(weight.shape),
            "packing": torch.tensor([52], dtype=torch.uint8),
        }
        stored = stored.view(torch.float16) if as_floats else stored
        return {"W_q": stored, "scale": scales, "zero": zeros, **stated}, plain

    return write


def by_the_library(bits: int, group: int | None, axis: int) -> Writer:
    quantize = pytest.importorskip("hqq.core.quantize")

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        linear.weight.data = weight.clone()
        facts = quantize.BaseQuantizeConfig(nbits=bits, group_size=group, axis=axis)
        made = quantize.HQQLinear(linear, facts, compute_dtype=torch.float32, device="cpu")
        return {
            name: own.data for name, own in made.state_dict().items()
        }, made.dequantize().float()

    return write


CASES = [
    (4, 16, 1),
    (8, None, 1),
    (3, 16, 1),
    (2, 16, 1),
    (1, 8, 1),
    (4, 16, 0),
    (3, 64, 0),
    (8, None, 0),
]


@pytest.mark.parametrize(("bits", "group", "axis"), CASES)
def test_a_model_computes_what_its_integers_stand_for(
    bits: int, group: int | None, axis: int, tmp_path: Path
) -> None:
    stored, plain = packed(checkpoint(LLAMA, tmp_path), writer(bits, group, axis))
    expected = scores(LLAMA, tmp_path, plain)
    assert_alike(scores(LLAMA, tmp_path, stored, Hqq(config(bits, group, axis))), expected)
    assert_alike(
        on_two_ranks(LLAMA, tmp_path, stored, lambda: Hqq(config(bits, group, axis))), expected
    )


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "group", "axis"), CASES)
def test_what_the_library_writes_is_read(
    bits: int, group: int | None, axis: int, tmp_path: Path
) -> None:
    stored, plain = packed(checkpoint(LLAMA, tmp_path), by_the_library(bits, group, axis))
    found = scores(LLAMA, tmp_path, stored, Hqq(config(bits, group, axis)))
    assert_alike(found, scores(LLAMA, tmp_path, plain))


def test_groups_that_end_in_another_row_are_read(tmp_path: Path) -> None:
    """Groups of 64 of 96 inputs: HQQ reshapes the flat weight."""
    stored, plain = packed(checkpoint(LLAMA, tmp_path), writer(4, 64))
    assert_alike(
        scores(LLAMA, tmp_path, stored, Hqq(config(4, 64))), scores(LLAMA, tmp_path, plain)
    )


def test_bytes_may_be_named_floats(tmp_path: Path) -> None:
    stored, plain = packed(checkpoint(LLAMA, tmp_path), writer(as_floats=True))
    assert_alike(scores(LLAMA, tmp_path, stored, Hqq(config())), scores(LLAMA, tmp_path, plain))


def test_kinds_of_layers_may_have_settings_of_their_own(tmp_path: Path) -> None:
    tensors = checkpoint(LLAMA, tmp_path)
    eight = [name for name in tensors if name.endswith("mlp.down_proj.weight")]
    four = [name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight"))]
    stored, plain = packed(tensors, writer(8, 32), eight.__contains__)
    stored, plain = (
        packed(own, writer(), four.__contains__)[at] for at, own in enumerate((stored, plain))
    )
    kinds = {"self_attn.q_proj": settings(4, 16, 1), "self_attn.k_proj": settings(4, 16, 1)}
    kinds["mlp.down_proj"] = settings(8, 32, 1)
    quant = Hqq(config(quant_config=kinds))
    assert_alike(scores(LLAMA, tmp_path, stored, quant), scores(LLAMA, tmp_path, plain))


def test_modules_that_the_config_names_are_plain(tmp_path: Path) -> None:
    def which(name: str) -> bool:
        return is_linear(name) and "v_proj" not in name and "mlp.up_proj" not in name

    stored, plain = packed(checkpoint(LLAMA, tmp_path), writer(), which)
    quant = Hqq(config(skip_modules=["lm_head", "mlp.up_proj", "v_proj"]))
    assert_alike(scores(LLAMA, tmp_path, stored, quant), scores(LLAMA, tmp_path, plain))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_config": {}}, "quant_config has no weight_quant_params"),
        (
            {"quant_config": settings(5, 64, 1)},
            "5 bits in groups of 64 along axis 1.* hqq has 1, 2, 3, 4, 8 bits",
        ),
        (
            {"quant_config": {**settings(4, 64, 1), "zero_quant_params": {"nbits": 8}}},
            "zero_quant_params: scales or zero points that are quantized themselves are not read",
        ),
    ],
)
def test_what_is_not_read_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Hqq(config(**change))


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "W_q",
            torch.zeros(3, 16, dtype=torch.uint8),
            r"has a W_q of uint8 \[3, 16\]; 4 bits .* uint8 \[192, 16\]",
        ),
        ("scale", torch.ones(5), r"has a scale of shape \[5\]; there are 384 groups"),
        ("nbits", torch.tensor(8), "up_proj.nbits is 8, and the quantization config says 4"),
        ("zero", None, "missing tensors: model.layers.0.mlp.up_proj.zero"),
    ],
)
def test_a_broken_checkpoint_is_one_clear_error(
    name: str, tensor: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    stored, _ = packed(checkpoint(LLAMA, tmp_path), writer())
    place = f"model.layers.0.mlp.up_proj.{name}"
    del stored[place]
    stored |= {} if tensor is None else {place: tensor}
    with pytest.raises(ModelError, match=message):
        scores(LLAMA, tmp_path, stored, Hqq(config()))
