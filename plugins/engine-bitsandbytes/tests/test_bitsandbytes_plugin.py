"""Plain checkpoints are quantized while they load to what the library makes of them, alone and on
two ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

functional = pytest.importorskip("bitsandbytes.functional")
sys.path.insert(0, str(Path(__file__).parents[1]))

from engine_bitsandbytes.method import make_method  # noqa: E402 - behind the look for the library

from builtin_plugins.quant_methods.bitsandbytes.method import BitsAndBytes  # noqa: E402
from tests.quant_methods.stored import (  # noqa: E402
    Tensors,
    assert_alike,
    checkpoint,
    on_two_ranks,
    packed,
    scores,
)
from tests.quant_methods.test_bitsandbytes import config  # noqa: E402


def method(kind: str, stated: Any = None) -> Any:
    return make_method(stated, SimpleNamespace(options={"bitsandbytes_type": kind}))  # type: ignore[arg-type]


def by_the_library(kind: str, weight: torch.Tensor) -> torch.Tensor:
    if kind == "int8":
        codes, furthest, _ = functional.int8_vectorwise_quant(weight.half())
        return functional.int8_vectorwise_dequant(codes, furthest).float()
    codes, state = functional.quantize_4bit(weight, quant_type=kind)
    state.shape = torch.Size(
        [weight.numel() // 64, 64]
    )  # its CPU kernel loses blocks that end in another row
    return functional.dequantize_4bit(codes, state).float().view(weight.shape)


@pytest.mark.parametrize("kind", ["nf4", "fp4", "int8"])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
def test_a_plain_checkpoint_becomes_what_the_library_makes(
    architecture: str, kind: str, tmp_path: Path
) -> None:
    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        return {"weight": weight}, by_the_library(kind, weight)

    sizes = (
        {"intermediate_size": 128, "moe_intermediate_size": 64}
        if "Moe" in architecture
        else {"intermediate_size": 128}
    )
    stored, plain = packed(checkpoint(architecture, tmp_path, **sizes), write)
    expected = scores(architecture, tmp_path, plain)
    assert_alike(scores(architecture, tmp_path, stored, method(kind)), expected)
    assert_alike(on_two_ranks(architecture, tmp_path, stored, lambda: method(kind)), expected)
    assert not torch.equal(expected, scores(architecture, tmp_path, stored))


def test_a_checkpoint_of_bitsandbytes_is_read_as_without_the_plugin() -> None:
    assert isinstance(method("nf4", config()), BitsAndBytes)
