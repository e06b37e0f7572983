"""AWQ checkpoints give what their dequantized weights give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.awq.method import Awq
from core.errors import ModelError
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
PACKED_IN_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def config(group: int = 16, **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "version": "gemm",
        "zero_point": True,
        **more,
    }


def as_awq(numbers: torch.Tensor) -> torch.Tensor:
    """Pack [n, out]: of eight neighbours the even ones come first."""
    found = torch.zeros(numbers.shape[0], numbers.shape[1] // 8, dtype=torch.int64)
    for place, column in enumerate(PACKED_IN_ORDER):
        found |= numbers[:, column::8].long() << (4 * place)
    return torch.where(found >= 2**31, found - 2**32, found).to(torch.int32)


def writer(group: int = 16) -> Writer:
    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        codes, scales, zeros, plain = rounded(weight, 4, group, symmetric=False)
        return {
            "qweight": as_awq(codes.T),
            "qzeros": as_awq(zeros.T),
            "scales": scales.T.contiguous(),
        }, plain

    return write


@pytest.mark.parametrize(
    ("architecture", "group"),
    [
        (LLAMA, -1),
        ("Qwen3MoeForCausalLM", 16),
        ("DeepseekV3ForCausalLM", 8),
        ("Gemma3ForCausalLM", 32),
        ("MixtralForCausalLM", 32),
        ("Phi3ForCausalLM", 16),
    ],
)
def test_a_model_computes_what_its_integers_stand_for(
    architecture: str, group: int, tmp_path: Path
) -> None:
    stored, plain = packed(checkpoint(architecture, tmp_path), writer(group))
    found = scores(architecture, tmp_path, stored, Awq(config(group)))
    assert_alike(found, scores(architecture, tmp_path, plain))


def test_two_ranks_give_what_one_gives_and_some_modules_are_plain(tmp_path: Path) -> None:
    def which(name: str) -> bool:
        return is_linear(name) and "layers.1.mlp" not in name and "k_proj" not in name

    stored, plain = packed(checkpoint(LLAMA, tmp_path), writer(), which)
    settings = config(modules_to_not_convert=["layers.1.mlp", "k_proj"])
    assert_alike(
        on_two_ranks(LLAMA, tmp_path, stored, lambda: Awq(settings)), scores(LLAMA, tmp_path, plain)
    )


def test_older_names_of_settings_are_read(tmp_path: Path) -> None:
    stored, plain = packed(checkpoint(LLAMA, tmp_path), writer(32))
    quant = Awq({"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "version": "GEMM"})
    assert_alike(scores(LLAMA, tmp_path, stored, quant), scores(LLAMA, tmp_path, plain))


@pytest.mark.parametrize("change", [{"bits": 3}, {"version": "gemv"}, {"group_size": None}])
def test_other_versions_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"awq has 4 bits, groups .* gemm is read"):
        Awq({**config(), **change})


def test_a_missing_scale_is_named(tmp_path: Path) -> None:
    stored, _ = packed(checkpoint(LLAMA, tmp_path), writer())
    del stored["model.layers.0.self_attn.o_proj.scales"]
    with pytest.raises(
        ModelError, match=r"missing tensors: model.layers.0.self_attn.o_proj.scales"
    ):
        scores(LLAMA, tmp_path, stored, Awq(config()))
